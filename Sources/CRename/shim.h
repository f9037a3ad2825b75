// glibc declares renameat2(2) for _GNU_SOURCE only, which Swift's Glibc doesn't define.
#pragma once

static const unsigned int CRENAME_NOREPLACE = 1;

extern int renameat2(int olddirfd, const char *oldpath, int newdirfd, const char *newpath, unsigned int flags);

#pragma once

/// The commit that this program was built from, as Package.swift has it from the environment of the build.
const char *_Nonnull siwad_commit(void);

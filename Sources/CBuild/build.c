#include "build.h"

const char *siwad_commit(void) { return SIWAD_COMMIT; }

// The updates for AVX2. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_UPDATE_ISA avx2
#define ORCA_UPDATE_NAME "avx2"
#define ORCA_UPDATE_WIDTH 32
#include "learn/update.inc"
#endif

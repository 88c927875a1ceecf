// The updates for AVX-512 (F, BW, VL, DQ). Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_UPDATE_ISA avx512
#define ORCA_UPDATE_NAME "avx512"
#define ORCA_UPDATE_WIDTH 64
#include "learn/update.inc"
#endif

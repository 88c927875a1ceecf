// The loops of TPE for AVX2. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_TPE_ISA avx2
#define ORCA_TPE_NAME "avx2"
#include "tune/tpe_kernels.inc"
#endif

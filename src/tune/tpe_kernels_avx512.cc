// The loops of TPE for AVX512. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_TPE_ISA avx512
#define ORCA_TPE_NAME "avx512"
#include "tune/tpe_kernels.inc"
#endif

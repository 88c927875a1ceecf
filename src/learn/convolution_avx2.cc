// The convolutions for AVX2 and FMA. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_CONVOLUTION_ISA avx2
#define ORCA_CONVOLUTION_NAME "avx2"
#define ORCA_CONVOLUTION_AVX 1
#include "learn/convolution.inc"
#endif

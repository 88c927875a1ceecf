// The kernels for AVX2 and F16C. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_KERNEL_ISA avx2
#define ORCA_KERNEL_NAME "avx2"
#define ORCA_KERNEL_WIDTH 32
#include "comm/kernels.inc"
#endif

// The kernels for AVX-512 (F, BW, VL, DQ). Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_KERNEL_ISA avx512
#define ORCA_KERNEL_NAME "avx512"
#define ORCA_KERNEL_WIDTH 64
#include "comm/kernels.inc"
#endif

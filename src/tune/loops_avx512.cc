// The loops of samplers for AVX512. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_LOOPS_ISA avx512
#define ORCA_LOOPS_NAME "avx512"
#define ORCA_LOOPS_BYTES 64
#include "tune/loops.inc"
#endif

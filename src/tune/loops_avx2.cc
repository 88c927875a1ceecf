// The loops of samplers for AVX2. Compiled with options that only this file may have.
#if defined(__x86_64__)
#define ORCA_LOOPS_ISA avx2
#define ORCA_LOOPS_NAME "avx2"
#define ORCA_LOOPS_BYTES 32
#include "tune/loops.inc"
#endif

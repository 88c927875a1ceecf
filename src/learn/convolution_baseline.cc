// The convolutions that every processor of the architecture runs.
#define ORCA_CONVOLUTION_ISA baseline
#define ORCA_CONVOLUTION_NAME "baseline"
#define ORCA_CONVOLUTION_AVX 0
#include "learn/convolution.inc"

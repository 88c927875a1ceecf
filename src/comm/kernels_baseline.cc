// The kernels that every processor of the architecture runs: SSE2 on x86-64, NEON on aarch64.
#define ORCA_KERNEL_ISA baseline
#define ORCA_KERNEL_NAME "baseline"
#define ORCA_KERNEL_WIDTH 16
#include "comm/kernels.inc"

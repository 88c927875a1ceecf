// The loops of TPE for any processor.
#define ORCA_TPE_ISA baseline
#define ORCA_TPE_NAME "baseline"
#include "tune/tpe_kernels.inc"

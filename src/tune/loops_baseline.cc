// The loops of samplers for any processor.
#define ORCA_LOOPS_ISA baseline
#define ORCA_LOOPS_NAME "baseline"
#define ORCA_LOOPS_BYTES 16
#include "tune/loops.inc"

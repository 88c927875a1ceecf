// The updates that every processor of the architecture runs.
#define ORCA_UPDATE_ISA baseline
#define ORCA_UPDATE_NAME "baseline"
#define ORCA_UPDATE_WIDTH 16
#include "learn/update.inc"

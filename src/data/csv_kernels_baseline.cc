#define ORCA_CSV_KERNELS kCsvKernelsBaseline
#include "data/csv_kernels.inc"

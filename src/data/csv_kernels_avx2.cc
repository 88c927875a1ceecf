#if defined(__x86_64__)
#define ORCA_CSV_KERNELS kCsvKernelsAvx2
#include "data/csv_kernels.inc"
#endif

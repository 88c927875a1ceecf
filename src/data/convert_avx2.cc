#if defined(__x86_64__)
#define ORCA_CONVERTERS kConvertersAvx2
#include "data/convert.inc"
#endif

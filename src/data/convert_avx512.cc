#if defined(__x86_64__)
#define ORCA_CONVERTERS kConvertersAvx512
#include "data/convert.inc"
#endif

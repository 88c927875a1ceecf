#define ORCA_CONVERTERS kConvertersBaseline
#include "data/convert.inc"

// The conversions, compiled once for each instruction set. Internal to convert*.cc.
#pragma once

#include "data/convert.h"

namespace orca::data {

/// One instruction set's conversions to float32.
struct Converters {
  ConvertFunction from_uint8;
  ConvertFunction from_float64;
};

extern const Converters kConvertersBaseline;
#if defined(__x86_64__)
extern const Converters kConvertersAvx2;
extern const Converters kConvertersAvx512;
#endif

}  // namespace orca::data

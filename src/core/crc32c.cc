#include <nmmintrin.h>
#include <cstring>
#include "orca/core/crc32c.h"
namespace orca { __attribute__((target("sse4.2"))) std::uint32_t Crc32c(const void* d, std::size_t n, std::uint32_t crc){ const unsigned char*p=(const unsigned char*)d; unsigned long long c=~crc; while(n>=8){unsigned long long v; memcpy(&v,p,8); c=_mm_crc32_u64(c,v); p+=8;n-=8;} while(n--) c=_mm_crc32_u8((unsigned)c,*p++); return ~(unsigned)c;} }

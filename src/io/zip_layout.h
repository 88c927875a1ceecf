// The numbers of the zip format (APPNOTE 6.3.3) that reader and writer share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orca::io::zip {

inline constexpr std::uint32_t kHeader = 0x04034b50;  // "PK\3\4": before a record
inline constexpr std::uint32_t kEntry = 0x02014b50;   // in the directory
inline constexpr std::uint32_t kWideEnd = 0x06064b50;
inline constexpr std::uint32_t kWideLocator = 0x07064b50;
inline constexpr std::uint32_t kEnd = 0x06054b50;

inline constexpr std::size_t kHeaderBytes = 30;
inline constexpr std::size_t kEntryBytes = 46;
inline constexpr std::size_t kWideEndBytes = 56;
inline constexpr std::size_t kWideLocatorBytes = 20;
inline constexpr std::size_t kEndBytes = 22;

inline constexpr std::uint16_t kWideField = 1;          // an extra field with numbers of 64 bits
inline constexpr std::uint16_t kPaddingField = 0x4246;  // "FB", as torch fills up
inline constexpr std::uint16_t kStored = 0;
inline constexpr std::uint32_t kFolderAttribute = 0x10;
inline constexpr std::uint32_t kIsWide = 0xffffffff;  // the number is in the extra field
inline constexpr std::uint16_t kIsWideCount = 0xffff;

}  // namespace orca::io::zip

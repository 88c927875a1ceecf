// The cryptography of the net room: OpenSSL's, and the kernel's random bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace orca::net {

using Digest = std::array<std::uint8_t, 32>;
using ConstBytes = std::span<const std::byte>;

/// HMAC-SHA256 over the concatenation of `parts`.
Digest HmacSha256(std::span<const std::uint8_t> key, std::initializer_list<ConstBytes> parts);

/// HKDF-SHA256, 32 bytes.
Digest HkdfSha256(std::span<const std::uint8_t> key, ConstBytes salt, ConstBytes info);

Digest Sha256(ConstBytes data);

/// Fills `bytes` from the kernel's generator.
void FillRandom(std::span<std::uint8_t> bytes);

/// Compares in constant time.
bool Equal(const Digest& expected, ConstBytes actual);

}  // namespace orca::net

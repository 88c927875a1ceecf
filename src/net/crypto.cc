#include "net/crypto.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <sys/random.h>

#include <cerrno>
#include <memory>
#include <string>

#include "net/os_error.h"
#include "orca/core/error.h"

namespace orca::net {
namespace {

struct Freer {
  void operator()(EVP_MAC* mac) const { EVP_MAC_free(mac); }
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

void Check(bool ok, const char* what) {
  if (ok) return;
  const unsigned long error = ERR_get_error();
  const char* reason = ERR_reason_error_string(error);
  throw Error(Code::kInternal, fmt::format("OpenSSL cannot compute {}: {}", what,
                                           reason == nullptr ? "no reason given" : reason));
}

const unsigned char* Data(ConstBytes bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

OSSL_PARAM Sha256Param(const char* key) {
  static char name[] = "SHA256";
  return OSSL_PARAM_construct_utf8_string(key, name, 0);
}

// OpenSSL takes parameters as non-const pointers, and does not write to these.
OSSL_PARAM OctetParam(const char* key, const void* data, std::size_t size) {
  return OSSL_PARAM_construct_octet_string(key, const_cast<void*>(data), size);
}

}  // namespace

Digest HmacSha256(std::span<const std::uint8_t> key, std::initializer_list<ConstBytes> parts) {
  const std::unique_ptr<EVP_MAC, Freer> mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
  const std::unique_ptr<EVP_MAC_CTX, Freer> context(mac ? EVP_MAC_CTX_new(mac.get()) : nullptr);
  Check(context != nullptr, "an HMAC");
  const OSSL_PARAM params[] = {Sha256Param(OSSL_MAC_PARAM_DIGEST), OSSL_PARAM_construct_end()};
  Check(EVP_MAC_init(context.get(), key.data(), key.size(), params) == 1, "an HMAC");
  for (const ConstBytes part : parts) {
    Check(EVP_MAC_update(context.get(), Data(part), part.size()) == 1, "an HMAC");
  }
  Digest digest{};
  std::size_t size = 0;
  Check(EVP_MAC_final(context.get(), digest.data(), &size, digest.size()) == 1 &&
            size == digest.size(),
        "an HMAC");
  return digest;
}

Digest HkdfSha256(std::span<const std::uint8_t> key, ConstBytes salt, ConstBytes info) {
  const std::unique_ptr<EVP_KDF, Freer> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, Freer> context(kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr);
  Check(context != nullptr, "a session key");
  const OSSL_PARAM params[] = {
      Sha256Param(OSSL_KDF_PARAM_DIGEST),
      OctetParam(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OctetParam(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OctetParam(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end(),
  };
  Digest derived{};
  Check(EVP_KDF_derive(context.get(), derived.data(), derived.size(), params) == 1,
        "a session key");
  return derived;
}

Digest Sha256(ConstBytes data) {
  Digest digest{};
  unsigned int size = 0;
  Check(EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1,
        "a hash");
  return digest;
}

void FillRandom(std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowErrno(Code::kInternal, "the kernel gives no random bytes", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

bool Equal(const Digest& expected, ConstBytes actual) {
  return actual.size() == expected.size() &&
         CRYPTO_memcmp(expected.data(), actual.data(), expected.size()) == 0;
}

}  // namespace orca::net

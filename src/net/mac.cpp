#include "net/mac.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <vector>

#include "base/error.hpp"

namespace ckpt::net {

Mac mac_of(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> bytes;
  for (const auto part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
  Mac mac;
  unsigned size = 0;
  const auto* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(bytes.data()),
           bytes.size(), reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (made == nullptr || size != mac.size())
    throw Failure(CKPT_ERR_SYSTEM, "OpenSSL cannot make an HMAC-SHA256; correct its configuration (openssl.cnf)");
  return mac;
}

bool equal(const Mac& one, const Mac& other) { return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0; }

}  // namespace ckpt::net

#include "engine/base/sha256.hpp"

#include <openssl/evp.h>

#include <array>

#include "engine/base/check.hpp"

namespace kalibri {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  KALIBRI_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "SHA-256 cannot be started");
}

void Sha256::add(const void* data, std::size_t n_bytes) {
  KALIBRI_CHECK(EVP_DigestUpdate(context_.get(), data, n_bytes) == 1, "SHA-256 failed");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned n_bytes = 0;
  KALIBRI_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &n_bytes) == 1, "SHA-256 failed");
  std::string text;
  for (unsigned i = 0; i < n_bytes; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4];
    text += "0123456789abcdef"[digest[i] & 15];
  }
  return text;
}

std::string sha256(std::string_view bytes) {
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  return sha.hex();
}

}  // namespace kalibri

// SHA-256 (FIPS 180-4): which file, which text. It knows nothing of what the bytes are.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace kalibri {

class Sha256 {
 public:
  Sha256();
  void add(const void* data, std::size_t n_bytes);
  /// The digest of all that was added, in lower-case hex. It ends the object: nothing more is added or asked.
  std::string hex();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// The digest of `bytes`, in lower-case hex.
std::string sha256(std::string_view bytes);

}  // namespace kalibri

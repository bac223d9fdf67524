// The checkpoint's fingerprint, by OpenSSL's SHA-256. Written from its definition in the header.
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>

#include "reference/checkpoint.hpp"
#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kBlockBytes = 65536;
constexpr std::int64_t kBlocks = 1024;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "SHA-256 starts");
  }
  void add(std::span<const std::byte> bytes) {
    check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "SHA-256 takes bytes");
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int n_bytes = 0;
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), &n_bytes) == 1, "SHA-256 ends");
    std::string text;
    for (unsigned int i = 0; i < n_bytes; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

/// Bytes [begin, end) of a shard's data, whose pages are let go again.
void add_data(Sha256& sha, std::span<const std::byte> data, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end; at += kBlockBytes) {
    const auto block =
        data.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(kBlockBytes, end - at)));
    sha.add(block);
    drop_pages(block);
  }
}

}  // namespace

std::string fingerprint(const Checkpoint& checkpoint, bool full) {
  Sha256 sha;
  sha.add(std::as_bytes(std::span(checkpoint.config_bytes())));
  for (const SafetensorsFile& shard : checkpoint.shards()) {
    sha.add(std::as_bytes(std::span(shard.name().c_str(), shard.name().size() + 1)));  // with its zero byte
    std::array<std::byte, 8> size{};
    for (std::size_t i = 0; i < size.size(); ++i)
      size[i] = static_cast<std::byte>(shard.bytes().size() >> (8 * i) & 0xff);
    sha.add(size);
    sha.add(shard.header());
    const auto n_bytes = static_cast<std::int64_t>(shard.data().size());
    if (full || n_bytes <= kBlocks * kBlockBytes) {
      add_data(sha, shard.data(), 0, n_bytes);
      continue;
    }
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      const std::int64_t begin = i * (n_bytes - kBlockBytes) / (kBlocks - 1);
      add_data(sha, shard.data(), begin, begin + kBlockBytes);
    }
  }
  return sha.hex();
}

}  // namespace kalibri::reference

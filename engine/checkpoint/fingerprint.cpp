#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/sha256.hpp"
#include "engine/checkpoint/checkpoint.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr std::uint64_t kBlockBytes = 65536;
constexpr std::uint64_t kBlocks = 1024;
constexpr std::uint64_t kReadBytes = 1 << 20;

void add_range(Sha256& sha, const SafetensorsFile& shard, std::uint64_t offset, std::uint64_t n_bytes) {
  std::vector<std::byte> buffer(std::min(n_bytes, kReadBytes));
  while (n_bytes > 0) {
    const std::span<std::byte> part(buffer.data(), std::min(n_bytes, kReadBytes));
    shard.file().read(offset, part);
    sha.add(part.data(), part.size());
    offset += part.size();
    n_bytes -= part.size();
  }
}

}  // namespace

std::string fingerprint(const Checkpoint& checkpoint, bool full) {
  Sha256 sha;
  sha.add(checkpoint.config_bytes().data(), checkpoint.config_bytes().size());
  for (const SafetensorsFile& shard : checkpoint.shards()) {
    const std::string name = shard.path().filename().string();
    sha.add(name.c_str(), name.size() + 1);
    std::array<unsigned char, 8> size{};
    for (std::size_t i = 0; i < size.size(); ++i) size[i] = static_cast<unsigned char>(shard.bytes().size() >> (8 * i));
    sha.add(size.data(), size.size());
    sha.add(shard.header().data(), shard.header().size());

    const std::uint64_t n_data = shard.data().size();
    const std::uint64_t data_begin = shard.bytes().size() - n_data;
    if (full || n_data <= kBlocks * kBlockBytes) {
      add_range(sha, shard, data_begin, n_data);
    } else {
      for (std::uint64_t i = 0; i < kBlocks; ++i) {
        add_range(sha, shard, data_begin + i * (n_data - kBlockBytes) / (kBlocks - 1), kBlockBytes);
      }
    }
  }
  return sha.hex();
}

}  // namespace kalibri::checkpoint

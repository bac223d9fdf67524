// A checkpoint directory: config.json and the safetensors shards, mapped; nothing is decoded here. Which tensors a
// model needs is said by that family's file.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/safetensors.hpp"

namespace kalibri::reference {

class Checkpoint {
 public:
  /// Opens the shards that model.safetensors.index.json names, or, without an index, all model*.safetensors. With an
  /// index, every shard is present and holds exactly the tensors that the index says. Throws Error.
  explicit Checkpoint(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const std::string& config_bytes() const { return config_bytes_; }
  [[nodiscard]] const nlohmann::json& config() const { return config_; }
  /// Sorted by file name.
  [[nodiscard]] const std::vector<SafetensorsFile>& shards() const { return shards_; }

  /// Nothing when there is no such tensor. What it points to lives as long as the checkpoint.
  [[nodiscard]] const TensorView* find(const std::string& name) const;
  /// Whether there is a tensor whose name begins with `prefix`.
  [[nodiscard]] bool has_below(const std::string& prefix) const;
  /// Throws Error when tensor `name` is missing, is not of `shape` or has none of `dtypes`.
  [[nodiscard]] const TensorView& require(const std::string& name, std::span<const std::int64_t> shape,
                                          std::span<const std::string_view> dtypes) const;

 private:
  std::filesystem::path directory_;
  std::string config_bytes_;
  nlohmann::json config_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, const TensorView*> tensors_;
};

/// SHA-256 in lower-case hex over config.json's bytes and then, for each shard by name: its file name, a zero byte, its
/// size as 8 little-endian bytes, its JSON header as stored, and 1,024 blocks of 64 KiB of its data: block i starts at
/// floor(i * (data size - 64 KiB) / 1023); all of the data when it is no larger than that, or `full`. Throws Error.
std::string fingerprint(const Checkpoint& checkpoint, bool full);

}  // namespace kalibri::reference

// A directory's tensors by name, of which only those shards are opened, or need be there, that are asked for. It reads
// no config.json and knows no family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"

namespace kalibri::checkpoint {

class LazyShards {
 public:
  /// Reads the index; without one all model*.safetensors are opened. Throws Error(file | format).
  explicit LazyShards(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// Names of the shards, ascending.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  /// Every tensor's shard, by the tensor's name.
  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& places() const { return places_; }

  /// Opens the shard if it is not open. Throws Error(file | format), also when the index has other tensors in it.
  const SafetensorsFile& open(const std::string& file);
  /// Null when no shard has it. Throws as `open`.
  const TensorView* find(std::string_view name);

 private:
  std::filesystem::path directory_;
  std::vector<std::string> files_;
  std::map<std::string, std::string, std::less<>> places_;
  std::map<std::string, SafetensorsFile> opened_;
};

}  // namespace kalibri::checkpoint

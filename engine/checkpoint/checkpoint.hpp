// A checkpoint directory: config.json and the safetensors shards, mapped, nothing copied. It finds tensors by name and
// checks shapes and dtypes on request; which tensors a model needs is said by that family's file beside it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/safetensors.hpp"
#include "engine/kernels/matrix_view.hpp"

namespace kalibri::checkpoint {

class Checkpoint {
 public:
  /// Opens DIR: model.safetensors.index.json's shards if it exists (every shard present, every name in the shard that the
  /// index gives, no tensor outside the index), else all model*.safetensors; other files are ignored. Reads config.json.
  /// Throws Error(file | format) naming what is missing, extra or damaged.
  static Checkpoint open(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const nlohmann::json& config() const { return config_; }
  [[nodiscard]] const std::string& config_bytes() const { return config_bytes_; }
  [[nodiscard]] const std::vector<SafetensorsFile>& shards() const { return shards_; }

  /// All tensors by name.
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  [[nodiscard]] const TensorView* find(const std::string& name) const;
  /// Throws Error(tensor) when it is missing or its shape differs from `shape` (the message names config's keys: `why`).
  [[nodiscard]] const TensorView& require(const std::string& name, std::span<const std::int64_t> shape,
                                          std::string_view why) const;

  /// Weight matrix `name` [n_rows, n_cols] in place: bf16, f32, or f8_e4m3 with `…weight_scale_inv` (f32
  /// [ceil(n_rows/128), ceil(n_cols/128)]). NaN codes are refused when `check_codes` (a pass over the bytes).
  /// Throws Error(tensor).
  [[nodiscard]] kernels::MatrixView matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols,
                                           bool check_codes) const;

  /// Vector `name` [n], bf16 or f32, widened to f32. Throws Error(tensor).
  [[nodiscard]] std::vector<float> vector(const std::string& name, std::int64_t n) const;

 private:
  std::filesystem::path directory_;
  nlohmann::json config_;
  std::string config_bytes_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, TensorView> tensors_;
};

/// SHA-256, lower-case hex, over config.json's bytes and then, for each shard by name: its file name, a zero byte, its
/// size as 8 little-endian bytes, its JSON header, and 1,024 evenly spaced blocks of 64 KiB of its data section (block i
/// starts at floor(i * (data_bytes - 65536) / 1023); all of the data when it is no larger than 1,024 blocks, or `full`).
std::string fingerprint(const Checkpoint& checkpoint, bool full = false);

}  // namespace kalibri::checkpoint

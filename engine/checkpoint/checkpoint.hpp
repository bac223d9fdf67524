// A checkpoint directory: config.json and the safetensors shards, mapped, nothing copied. It finds tensors by name and
// checks shapes and dtypes on request; which tensors a model needs is said by that family's file beside it.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/affine_config.hpp"
#include "engine/checkpoint/safetensors.hpp"
#include "engine/kernels/matrix_view.hpp"

namespace kalibri::checkpoint {

/// Why a tensor cannot be used.
struct Problem {
  std::string file;  // name of the shard; empty when the tensor is in none
  std::string tensor;
  std::string text;  // found, expected and why
};

class Checkpoint {
 public:
  /// Opens DIR: model.safetensors.index.json's shards if it exists (every shard present, every name in the shard that
  /// the index gives, no tensor outside the index), else all model*.safetensors (numbered -NNNNN-of-NNNNN: all of
  /// them); other files are ignored. Reads config.json, whose `quantization` names only modules that are there. Throws
  /// Error(file | format | config) naming what is missing, extra or damaged.
  static Checkpoint open(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const nlohmann::json& config() const { return config_; }
  [[nodiscard]] const std::string& config_bytes() const { return config_bytes_; }
  /// config.json's `quantization`: in which formats packed weights are.
  [[nodiscard]] const std::optional<AffineConfig>& affine() const { return affine_; }
  /// By file name.
  [[nodiscard]] const std::vector<SafetensorsFile>& shards() const { return shards_; }
  /// The index's metadata.total_size, when it has one.
  [[nodiscard]] std::optional<std::int64_t> index_total_size() const { return index_total_size_; }

  /// All tensors by name; they lie in the shards.
  [[nodiscard]] const std::map<std::string_view, const TensorView*>& tensors() const { return tensors_; }
  /// Null when there is none.
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  /// Throws Error(tensor) when it is missing or its shape differs from `shape` (the message names config's keys:
  /// `why`).
  [[nodiscard]] const TensorView& require(std::string_view name, std::span<const std::int64_t> shape,
                                          std::string_view why) const;

  /// Weight matrix `name` [n_rows, n_cols] in place: bf16, f32, f8_e4m3 with `…weight_scale_inv` (f32, bf16
  /// or f16 [ceil(n_rows/128), ceil(n_cols/128)]), or packed affine codes with `.scales` and `.biases`. With
  /// `check_values` an FP8 matrix is read once and refused for a NaN code and for a scale of 2^16 or more, which the
  /// kernels do not take (is_block_scale); of packed codes scales and biases are read. Block scales beside a weight
  /// that is not FP8 are refused. Throws Error(tensor).
  [[nodiscard]] kernels::MatrixView matrix(std::string_view name, std::int64_t n_rows, std::int64_t n_cols,
                                           bool check_values) const;

  /// The same, but no FP8 (embedding, head), or neither FP8 nor packed codes (router). Throws Error(tensor).
  [[nodiscard]] kernels::MatrixView unscaled_matrix(std::string_view name, std::int64_t n_rows,
                                                    std::int64_t n_cols) const;
  [[nodiscard]] kernels::MatrixView plain_matrix(std::string_view name, std::int64_t n_rows, std::int64_t n_cols) const;

  /// Matrix `index` of the stack `name` [n, n_rows, n_cols], bf16, f32 or packed affine codes, in place; check_values
  /// is about this one matrix. Throws Error(tensor).
  [[nodiscard]] kernels::MatrixView stacked_matrix(std::string_view name, std::int64_t n, std::int64_t n_rows,
                                                   std::int64_t n_cols, std::int64_t index, bool check_values) const;

  /// Small tensor `name`, bf16 or f32, widened to f32, row-major. Throws Error(tensor).
  [[nodiscard]] std::vector<float> vector(std::string_view name, std::int64_t n) const;
  [[nodiscard]] std::vector<float> small_tensor(std::string_view name, std::span<const std::int64_t> shape) const;
  /// Vector `name` [n], f32 alone. Throws Error(tensor).
  [[nodiscard]] std::vector<float> f32_vector(std::string_view name, std::int64_t n) const;
  /// The one element of `name`, of any shape, bf16, f16 or f32. Throws Error(tensor).
  [[nodiscard]] float scalar(std::string_view name) const;
  /// Vector `name` [n], i64. Throws Error(tensor).
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name, std::int64_t n) const;

  /// What `matrix`, `unscaled_matrix` or `stacked_matrix`, `small_tensor`, `f32_vector`, `scalar` and `integers` would
  /// throw for, if anything.
  [[nodiscard]] std::optional<Problem> matrix_problem(std::string_view name, std::int64_t n_rows, std::int64_t n_cols,
                                                      bool check_values) const;
  [[nodiscard]] std::optional<Problem> unscaled_problem(std::string_view name, std::span<const std::int64_t> shape,
                                                        bool check_values) const;
  [[nodiscard]] std::optional<Problem> small_tensor_problem(std::string_view name,
                                                            std::span<const std::int64_t> shape) const;
  [[nodiscard]] std::optional<Problem> f32_problem(std::string_view name, std::span<const std::int64_t> shape) const;
  [[nodiscard]] std::optional<Problem> scalar_problem(std::string_view name) const;
  [[nodiscard]] std::optional<Problem> integers_problem(std::string_view name, std::int64_t n) const;
  /// The part of `check_values` that reads little: a block scale of FP8 weight `name` that the kernels cannot use.
  [[nodiscard]] std::optional<Problem> block_scales_problem(std::string_view name) const;
  /// Throws `problem` as Error(tensor), with what to do.
  [[noreturn]] void refuse(const Problem& problem) const;

 private:
  [[nodiscard]] std::optional<Problem> shape_problem(std::string_view name, std::span<const std::int64_t> shape,
                                                     std::string_view why) const;
  [[nodiscard]] std::optional<Problem> stray_scales_problem(const TensorView& tensor, std::string_view name) const;
  [[nodiscard]] const float* scales(const TensorView& tensor) const;
  void check_affine_modules() const;
  void throw_if(const std::optional<Problem>& problem) const;

  std::filesystem::path directory_;
  nlohmann::json config_;
  std::string config_bytes_;
  std::optional<AffineConfig> affine_;
  std::vector<SafetensorsFile> shards_;
  std::optional<std::int64_t> index_total_size_;
  std::map<std::string_view, const TensorView*> tensors_;
  std::map<const TensorView*, std::vector<float>> widened_scales_;  // where they lie unaligned, or are bf16 or f16
};

/// The name of the scales of an FP8 weight `…weight`: `…weight_scale_inv`.
std::string scale_name(std::string_view weight_name);

/// SHA-256, lower-case hex, over config.json's bytes and then, for each shard in ascending byte order of its file name:
/// 1. the file name (no folder), UTF-8, followed by one zero byte;
/// 2. the size of the whole file as 8 little-endian bytes;
/// 3. the JSON header as it stands in the file: without the 8 bytes of its length, with its padding;
/// 4. of the D bytes after the header: all of them when D <= 1,024 * 65,536 or `full`; otherwise 1,024 blocks of 65,536
///    bytes, for i = 0 ... 1,023 the one that starts at byte floor(i * (D - 65,536) / 1,023) of these D.
/// Shards are those of Checkpoint::open; the index and other files do not enter.
std::string fingerprint(const Checkpoint& checkpoint, bool full = false);

}  // namespace kalibri::checkpoint

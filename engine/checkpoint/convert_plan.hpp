// What a conversion to an MLX directory writes: every tensor's name, dtype, shape and place in its shard, where its
// values come from, and config.json and the index. All of it follows from the source's headers, so that files can be
// written from anywhere to anywhere; nothing is written here. Source: kolibri-mlx, scripts/convert.py (which modules,
// which bits, shards); mlx-lm, mlx_lm/utils.py (names, config, index).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/family.hpp"
#include "engine/kernels/codec.hpp"

namespace kalibri::checkpoint {

struct ConvertOptions {
  std::int64_t bits = 4;                   // of every class without a number of its own
  std::optional<std::int64_t> dense_bits;  // 0: bf16; likewise the others
  std::optional<std::int64_t> expert_bits;
  std::optional<std::int64_t> embed_bits;
  std::optional<std::int64_t> head_bits;
  std::int64_t group_size = 64;
  kernels::AffineRule rule = kernels::AffineRule::cpu;
  bool quantises = true;                 // false: bf16 throughout
  std::optional<std::int64_t> n_layers;  // the first so many; all
  std::int64_t max_shard_bytes = std::int64_t{5} << 30;

  /// 4-bit experts, 8 bits elsewhere.
  static ConvertOptions mixed();
  /// Bits of a class; 0 where it stays bf16.
  [[nodiscard]] std::int64_t bits_of(WeightClass weights) const;
};

struct OutputTensor {
  std::string name;
  Dtype dtype = Dtype::bf16;
  std::vector<std::int64_t> shape;
  std::size_t shard = 0;
  std::int64_t offset = 0;  // among the shard's data
  [[nodiscard]] std::int64_t n_bytes() const;
};

/// Some rows of one stored matrix, or some bytes of one tensor, on their way into the output.
struct ConvertJob {
  enum class Kind : std::uint8_t { copy, widen, round, quantise } kind = Kind::copy;
  const TensorView* tensor = nullptr;  // copy, widen: the source
  kernels::MatrixView matrix = {};     // round, quantise: the source
  std::string name = {};               // of the source, for messages
  std::int64_t first = 0;              // row of the matrix, byte of the tensor
  std::int64_t n = 0;
  std::int64_t first_out = 0;  // row of the output, byte of the output
  std::size_t out = 0;         // index into tensors; a quantised weight's scales and biases follow it
  std::int64_t bits = 0;       // quantise
  std::int64_t n_source_bytes = 0;
};

struct ConvertShard {
  std::string name;
  std::string header;  // the file's first bytes: length and JSON
  std::int64_t n_data_bytes = 0;
};

struct ConvertPlan {
  std::vector<OutputTensor> tensors;  // in order of work: embedding, layers, final norm, head
  std::vector<ConvertJob> jobs;       // in the same order
  std::vector<ConvertShard> shards;
  std::string config;            // config.json
  std::string index;             // model.safetensors.index.json
  kernels::AffineTarget target;  // but for its bits
  std::int64_t n_parameters = 0;
  std::int64_t n_source_bytes = 0;
  std::int64_t n_output_bytes = 0;  // of tensors
};

/// Throws Error(usage) for bits, a group or a number of layers that cannot be, and Error(tensor | config) when the
/// source is not whole, holds tensors that are not known, or is quantised already.
ConvertPlan plan_conversion(const Checkpoint& checkpoint, const ConvertOptions& options);

}  // namespace kalibri::checkpoint

// What a model family asks of a checkpoint: every tensor's name, shape and kind, and what config.json leaves open. The
// one place of this folder that lists the families.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/kolibri1_config.hpp"
#include "engine/checkpoint/qwen4_exp_config.hpp"
#include "engine/checkpoint/weight_class.hpp"

namespace kalibri::checkpoint {

/// What a tensor is for; sizes are summed by it.
enum class TensorKind : std::uint8_t {
  embedding,
  head,
  stream_mixer,
  attention,
  delta_net,
  indexer,
  ngram_layer,
  ngram_table,
  router,
  expert,
  shared_expert,
  norm,
  scale,
  constant,    // integers that config.json's numbers give as well
  left_alone,  // known to the family, not read by this program
  other        // not known
};
std::string_view tensor_kind_name(TensorKind kind);

/// How a tensor may be stored.
enum class Storage : std::uint8_t {
  plain,     // bf16 or f32
  f32,       // f32 alone
  unscaled,  // [out, in] or a stack [n, out, in]: bf16, f32, or packed affine codes
  matrix,    // [out, in]: bf16, f32, f8_e4m3 with weight_scale_inv, or packed affine codes
  rows,      // [any number, row size]: bf16, f32, or f8_e4m3 with one scale for all
  scalar,    // one number, bf16, f16 or f32, of any shape
  integers,  // i64
};

struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  TensorKind kind = TensorKind::other;
  Storage storage = Storage::plain;
};

/// The class of formats that it belongs to.
WeightClass weight_class(const ExpectedTensor& tensor);

/// A family and what it says of one checkpoint.
struct Family {
  std::string model_type;  // of the family, whatever config.json calls its parts
  std::string summary;     // the architecture in one line
  std::vector<ExpectedTensor> tensors;
  std::vector<std::string> left_alone;  // prefixes of tensors that are known and not read
  std::vector<Problem> problems;  // in what tensors hold or are together; those of one tensor are found by its entry
  std::vector<std::string> unknown_keys, defaults_used;  // of config.json
  bool declares_fp8 = false;                             // quantization_config with FP8
  std::vector<std::string> modules_to_not_convert;
  bool lists_modules = false;  // that list is meant to be complete
};

/// config.json's model_type. Throws Error(config) when it is missing or no string.
std::string model_type(const Checkpoint& checkpoint);
/// Throws Error(config): that family is not known.
[[noreturn]] void refuse_model_type(const Checkpoint& checkpoint);

/// Throws Error(config) when config.json cannot be used or names an unknown family.
Family find_family(const Checkpoint& checkpoint);

/// How a layer's routed experts lie in a checkpoint.
enum class ExpertLayout : std::uint8_t {
  single,   // experts.N.{gate,up,down}_proj.weight
  stacked,  // switch_mlp.{gate,up,down}_proj.weight [E, out, in], as MLX has them
  fused,    // experts.gate_up_proj [E, 2 I, H] and experts.down_proj [E, H, I]
};

/// Where Kolibri 1's tensors lie that MLX directories name otherwise than the released ones.
struct Kolibri1Layout {
  ExpertLayout experts = ExpertLayout::single;

  /// Of the layer with that prefix ("model.layers.3.").
  [[nodiscard]] std::string expert_bias(const std::string& layer_prefix) const;
};
Kolibri1Layout find_kolibri1_layout(const Checkpoint& checkpoint);

/// The tensors of a Kolibri 1 checkpoint in that layout (weights; scales follow from the dtype).
std::vector<ExpectedTensor> kolibri1_tensors(const Kolibri1Config& config, const Kolibri1Layout& layout = {});

/// How a qwen4_exp checkpoint stores what can be stored in several ways.
struct Qwen4ExpLayout {
  std::string prefix = "model.";      // released: "model.language_model."
  std::vector<ExpertLayout> experts;  // by layer
  struct NgramTable {
    std::int64_t n_shards = 0;  // 0: one tensor
    bool has_scale = false;     // one for the whole FP8 table
    bool has_constants = false;
  };
  std::vector<NgramTable> ngram_tables;  // by n-gram layer

  /// "model.layers.3."
  [[nodiscard]] std::string layer_prefix(std::int64_t layer) const;
  /// The names of the parts of n-gram layer `module`'s table, in the order of their rows.
  [[nodiscard]] std::vector<std::string> ngram_table_names(const Qwen4ExpConfig& config, std::size_t module) const;
};
Qwen4ExpLayout find_qwen4_exp_layout(const Checkpoint& checkpoint, const Qwen4ExpConfig& config);

/// The tensors of qwen4_exp's text model in that layout.
std::vector<ExpectedTensor> qwen4_exp_tensors(const Qwen4ExpConfig& config, const Qwen4ExpLayout& layout);

/// What tensors of right shapes can still have wrong: FP8 blocks whose size config.json does not give, an n-gram table
/// with too few rows in all, hash constants that are not those of config.json's numbers.
std::vector<Problem> qwen4_exp_problems(const Checkpoint& checkpoint, const Qwen4ExpConfig& config,
                                        const Qwen4ExpLayout& layout);

}  // namespace kalibri::checkpoint

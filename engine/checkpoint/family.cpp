#include "engine/checkpoint/family.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/error.hpp"
#include "engine/checkpoint/json.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr std::array<std::string_view, 16> kKindNames = {
    "embedding", "head",   "stream mixer",  "attention", "delta net", "indexer",  "n-gram layer", "n-gram table",
    "router",    "expert", "shared expert", "norm",      "scale",     "constant", "left alone",   "other"};

std::string config_path(const Checkpoint& checkpoint) { return (checkpoint.directory() / "config.json").string(); }

Family kolibri1(const Checkpoint& checkpoint) {
  const Kolibri1Config c = Kolibri1Config::from_json(checkpoint.config(), config_path(checkpoint));
  Family family;
  family.model_type = "kolibri1";
  family.summary = fmt::format(
      "{} layers ({} sliding, window {}), hidden {}, heads {}/{} of {}, {} experts of {}, top {}, vocabulary {}",
      c.num_hidden_layers, std::count(c.layer_is_sliding.begin(), c.layer_is_sliding.end(), true), c.sliding_window,
      c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.num_experts, c.moe_intermediate_size,
      c.num_experts_per_tok, c.vocab_size);
  family.tensors = kolibri1_tensors(c, find_kolibri1_layout(checkpoint));
  family.unknown_keys = c.unknown_keys;
  family.declares_fp8 = c.has_quantization_config;
  family.lists_modules = !checkpoint.affine();
  family.modules_to_not_convert = c.modules_to_not_convert;
  return family;
}

Family qwen4_exp(const Checkpoint& checkpoint) {
  const Qwen4ExpConfig c = Qwen4ExpConfig::from_json(checkpoint.config(), config_path(checkpoint));
  const Qwen4ExpLayout layout = find_qwen4_exp_layout(checkpoint, c);
  Family family;
  family.model_type = "qwen4_exp";
  family.summary = fmt::format(
      "{} layers ({} sparse attention: {} tokens in blocks of {}), hidden {} in {} streams, heads {}/{} of {}, "
      "{} experts of {}, top {}, {} n-gram layers, vocabulary {}",
      c.num_hidden_layers, std::count(c.layer_is_sparse.begin(), c.layer_is_sparse.end(), true), c.indexer_budget,
      c.indexer_compress_ratio, c.hidden_size, c.hc_count, c.num_attention_heads, c.num_key_value_heads, c.head_dim,
      c.num_experts, c.moe_intermediate_size, c.num_experts_per_tok, c.ple_layers.size(), c.vocab_size);
  family.tensors = qwen4_exp_tensors(c, layout);
  family.left_alone = {"model.visual.", "mtp."};
  family.problems = qwen4_exp_problems(checkpoint, c, layout);
  family.unknown_keys = c.unknown_keys;
  family.defaults_used = c.defaults_used;
  family.declares_fp8 = c.has_block_scales;
  return family;
}

}  // namespace

std::string_view tensor_kind_name(TensorKind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

WeightClass weight_class(const ExpectedTensor& tensor) {
  const bool is_matrix = tensor.storage == Storage::matrix || tensor.storage == Storage::unscaled;
  const bool is_gate = tensor.kind == TensorKind::router || tensor.name.ends_with("_expert_gate.weight");
  if (tensor.kind == TensorKind::expert) return WeightClass::experts;
  if (!is_matrix || is_gate) return WeightClass::none;
  if (tensor.kind == TensorKind::embedding) return WeightClass::embed;
  if (tensor.kind == TensorKind::head) return WeightClass::head;
  return WeightClass::dense;
}

std::string model_type(const Checkpoint& checkpoint) {
  const auto found = checkpoint.config().find("model_type");
  if (found == checkpoint.config().end() || !found->is_string()) {
    throw Error(ErrorCode::config, fmt::format("{}: model_type: missing or no string; is this a model's folder?",
                                               config_path(checkpoint)));
  }
  return found->get<std::string>();
}

void refuse_model_type(const Checkpoint& checkpoint) {
  throw Error(ErrorCode::config, fmt::format("{}: model_type: '{}', expected kolibri1 or qwen4_exp",
                                             config_path(checkpoint), printable(model_type(checkpoint))));
}

Family find_family(const Checkpoint& checkpoint) {
  const std::string name = model_type(checkpoint);
  if (name == "kolibri1") return kolibri1(checkpoint);
  if (name == "qwen4_exp" || name == "qwen4_exp_text") return qwen4_exp(checkpoint);
  refuse_model_type(checkpoint);
}

}  // namespace kalibri::checkpoint

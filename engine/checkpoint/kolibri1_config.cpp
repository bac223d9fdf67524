#include "engine/checkpoint/kolibri1_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cfloat>

#include "engine/base/error.hpp"
#include "engine/checkpoint/config_reader.hpp"

namespace kalibri::checkpoint {

namespace {

// Sizes and positions are used as 32-bit integers, so the product of two fits 64 bits.
constexpr std::int64_t kMaxSize = INT32_MAX;
// Experts of all layers; the released model has 19,200. A bound on the work that a wrong file can ask for.
constexpr std::int64_t kMaxExpertsInAll = 1 << 20;

std::vector<bool> read_layer_types(ConfigReader& reader, std::int64_t n_layers) {
  const std::vector<std::string> types = reader.strings("layer_types");
  if (static_cast<std::int64_t>(types.size()) != n_layers) {
    reader.fail("layer_types", fmt::format("{} entries, expected {} (num_hidden_layers)", types.size(), n_layers));
  }
  std::vector<bool> is_sliding;
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      reader.fail("layer_types", fmt::format("'{}' (layer {}), expected sliding_attention or full_attention", type,
                                             is_sliding.size()));
    }
    is_sliding.push_back(type == "sliding_attention");
  }
  return is_sliding;
}

/// rope_parameters.rope_theta, where newer files have it, wins over the key at the top.
double read_rope_theta(ConfigReader& reader, const std::string& where, std::vector<std::string>& unknown_keys) {
  if (reader.has("rope_scaling"))
    reader.fail("rope_scaling", "scaled rotary embeddings are not implemented, expected null");
  reader.ignore({"rope_scaling", "rope_parameters"});
  double theta = 0;
  bool is_nested = false;
  if (reader.has("rope_parameters")) {
    ConfigReader nested(reader.value("rope_parameters"), where, "rope_parameters.");
    if (nested.has("rope_type")) nested.must_be("rope_type", "default", "scaled rotary embeddings are not implemented");
    is_nested = nested.has("rope_theta");
    if (is_nested) theta = nested.number("rope_theta");
    for (const std::string& key : nested.unknown_keys()) unknown_keys.push_back(key);
  }
  if (is_nested) {
    reader.ignore({"rope_theta"});
  } else {
    theta = reader.number("rope_theta");
  }
  if (!(theta >= 1)) reader.fail(is_nested ? "rope_parameters.rope_theta" : "rope_theta", "below 1");
  return theta;
}

void read_quantization(ConfigReader& reader, const std::string& where, Kolibri1Config& config) {
  // With `quantization` beside it the block is MLX's, the same again: the checkpoint has read it.
  config.has_quantization_config = reader.has("quantization_config") && !reader.has("quantization");
  reader.ignore({"quantization", "quantization_config"});
  if (!config.has_quantization_config) return;
  ConfigReader nested(reader.value("quantization_config"), where, "quantization_config.");
  nested.must_be("quant_method", "fp8", "no other stored format is read in this layout");
  nested.must_be("activation_scheme", "dynamic", "static activation scales are not read");
  nested.must_be("weight_block_size", {128, 128}, "the one size of FP8 blocks that is implemented");
  if (nested.has("modules_to_not_convert")) config.modules_to_not_convert = nested.strings("modules_to_not_convert");
  nested.ignore({"modules_to_not_convert"});
  for (const std::string& key : nested.unknown_keys()) config.unknown_keys.push_back(key);
}

/// What must fit together. Parameters are counted with overflow checks, so that no later product of sizes overflows.
void validate(const Kolibri1Config& c, const ConfigReader& reader) {
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    reader.fail("num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads {}", c.num_key_value_heads, c.num_attention_heads));
  }
  if (c.head_dim % 2 != 0) reader.fail("head_dim", fmt::format("{} is odd; rotary embeddings turn pairs", c.head_dim));
  if (c.num_attention_heads * c.head_dim > kMaxSize) {
    reader.fail("head_dim",
                fmt::format("{} heads of {} are more than {} in all", c.num_attention_heads, c.head_dim, kMaxSize));
  }
  if (c.num_experts_per_tok > c.num_experts) {
    reader.fail("num_experts_per_tok",
                fmt::format("{}, more than num_experts {}", c.num_experts_per_tok, c.num_experts));
  }
  if (c.num_hidden_layers * c.num_experts > kMaxExpertsInAll) {
    reader.fail("num_experts", fmt::format("{} in each of {} layers are more than {} in all", c.num_experts,
                                           c.num_hidden_layers, kMaxExpertsInAll));
  }
  std::int64_t n_bytes = 0;
  const std::array<std::array<std::int64_t, 3>, 3> largest = {{
      {c.num_hidden_layers * c.num_experts, 3 * c.moe_intermediate_size, c.hidden_size},
      {c.num_hidden_layers, 4 * c.num_attention_heads * c.head_dim + 3 * c.shared_expert_intermediate_size,
       c.hidden_size},
      {2, c.vocab_size, c.hidden_size},
  }};
  for (const auto& [count, rows, columns] : largest) {
    std::int64_t part = 0;
    if (__builtin_mul_overflow(count * static_cast<std::int64_t>(sizeof(float)), rows, &part) ||
        __builtin_mul_overflow(part, columns, &part) || __builtin_add_overflow(n_bytes, part, &n_bytes)) {
      reader.fail("hidden_size", "the sizes of this model overflow 64 bits");
    }
  }
}

}  // namespace

Kolibri1Config Kolibri1Config::from_json(const nlohmann::json& config, const std::string& where) {
  ConfigReader reader(config, where);
  Kolibri1Config c;
  reader.must_be("model_type", "kolibri1", "this reader's family");
  const auto size = [&](std::string_view key) { return reader.integer(key, 1, kMaxSize); };
  c.hidden_size = size("hidden_size");
  c.num_hidden_layers = size("num_hidden_layers");
  c.num_attention_heads = size("num_attention_heads");
  c.num_key_value_heads = size("num_key_value_heads");
  c.head_dim = size("head_dim");
  c.max_position_embeddings = size("max_position_embeddings");
  c.vocab_size = size("vocab_size");
  c.num_experts = size("num_experts");
  c.num_experts_per_tok = size("num_experts_per_tok");
  c.moe_intermediate_size = size("moe_intermediate_size");
  c.shared_expert_intermediate_size = size("shared_expert_intermediate_size");
  c.rms_norm_eps = reader.number("rms_norm_eps");
  if (!(c.rms_norm_eps >= static_cast<double>(FLT_MIN) && c.rms_norm_eps < 1)) {
    reader.fail("rms_norm_eps", fmt::format("{}, expected a float32 between 0 and 1", c.rms_norm_eps));
  }
  c.rope_theta = read_rope_theta(reader, where, c.unknown_keys);

  c.layer_is_sliding = read_layer_types(reader, c.num_hidden_layers);
  if (std::find(c.layer_is_sliding.begin(), c.layer_is_sliding.end(), true) != c.layer_is_sliding.end()) {
    reader.must_be("use_sliding_window", true, "layer_types has sliding_attention");
    c.sliding_window = size("sliding_window");
  }
  reader.ignore({"use_sliding_window", "sliding_window"});

  reader.must_be("hidden_act", "silu", "the activation of this family");
  reader.must_be("norm_topk_prob", false, "renormalised router weights are not implemented");
  reader.must_be("attention_bias", false, "attention biases are not implemented");
  reader.must_be("tie_word_embeddings", false, "tied embeddings are not implemented");
  reader.must_be("head_dtype", "float32", "logits are produced in float32");
  read_quantization(reader, where, c);
  validate(c, reader);

  reader.ignore({"architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range",
                 "pad_token_id", "torch_dtype", "transformers_version", "use_cache"});
  for (const std::string& key : reader.unknown_keys()) c.unknown_keys.push_back(key);
  return c;
}

}  // namespace kalibri::checkpoint

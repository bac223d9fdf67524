// Source: config.json of the released Kolibri 1, and the plugin's config.py (aleph-alpha-inference 1.0.0).
#include "reference/kolibri1_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/affine_config.hpp"
#include "reference/config_reader.hpp"

namespace kalibri::reference {
namespace {

std::vector<bool> read_layer_types(const ConfigReader& config, std::int64_t n_layers) {
  std::vector<bool> is_sliding;
  for (const std::string& type : config.texts("layer_types")) {
    if (type != "sliding_attention" && type != "full_attention") {
      config.refuse("layer_types", fmt::format("'{}' is none of sliding_attention and full_attention", type));
    }
    is_sliding.push_back(type == "sliding_attention");
  }
  if (static_cast<std::int64_t>(is_sliding.size()) != n_layers) {
    config.refuse("layer_types", fmt::format("{} entries, but num_hidden_layers is {}", is_sliding.size(), n_layers));
  }
  return is_sliding;
}

double read_rope_theta(const ConfigReader& config) {
  if (config.has("rope_scaling")) config.refuse("rope_scaling", "no scaling of positions is implemented");
  if (!config.has("rope_parameters")) return config.positive("rope_theta");
  const ConfigReader rope = config.object("rope_parameters");
  if (rope.has("rope_type")) rope.expect("rope_type", "default");
  return rope.has("rope_theta") ? rope.positive("rope_theta") : config.positive("rope_theta");
}

void refuse_what_is_not_implemented(const ConfigReader& config, bool is_mlx) {
  config.expect("hidden_act", "silu");
  config.expect("norm_topk_prob", false);
  config.expect("attention_bias", false);
  config.expect("tie_word_embeddings", false);
  config.expect("head_dtype", "float32");
  if (config.has("quantization_config") && !is_mlx) {
    const ConfigReader quantisation = config.object("quantization_config");
    quantisation.expect("quant_method", "fp8");
    quantisation.expect("activation_scheme", "dynamic");
    quantisation.expect("weight_block_size", {128, 128});
  }
}

}  // namespace

Kolibri1Config read_kolibri1_config(const Checkpoint& checkpoint) {
  const ConfigReader config(checkpoint);
  refuse_what_is_not_implemented(config, has_affine_block(checkpoint));
  Kolibri1Config values;
  values.hidden_size = config.size("hidden_size");
  values.num_hidden_layers = config.size("num_hidden_layers");
  values.num_attention_heads = config.size("num_attention_heads");
  values.num_key_value_heads = config.size("num_key_value_heads");
  values.head_dim = config.size("head_dim");
  values.max_position_embeddings = config.size("max_position_embeddings");
  values.rms_norm_eps = config.positive("rms_norm_eps");
  values.vocab_size = config.size("vocab_size");
  values.rope_theta = read_rope_theta(config);
  values.num_experts = config.size("num_experts");
  values.num_experts_per_tok = config.size("num_experts_per_tok");
  values.moe_intermediate_size = config.size("moe_intermediate_size");
  values.shared_expert_intermediate_size = config.size("shared_expert_intermediate_size");
  values.is_sliding = read_layer_types(config, values.num_hidden_layers);
  if (std::ranges::count(values.is_sliding, true) > 0) {
    config.expect("use_sliding_window", true);
    values.sliding_window = config.size("sliding_window");
  }
  if (values.num_attention_heads % values.num_key_value_heads != 0) {
    config.refuse("num_attention_heads",
                  fmt::format("no multiple of num_key_value_heads {}", values.num_key_value_heads));
  }
  if (values.head_dim % 2 != 0)
    config.refuse("head_dim", "rotary embedding pairs components: an even number is needed");
  if (values.num_experts_per_tok > values.num_experts) {
    config.refuse("num_experts_per_tok", fmt::format("more than num_experts {}", values.num_experts));
  }
  return values;
}

}  // namespace kalibri::reference

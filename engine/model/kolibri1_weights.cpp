#include "engine/model/kolibri1_weights.hpp"

#include <string>
#include <utility>

#include "engine/checkpoint/family.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/model/swiglu_weights.hpp"

namespace kalibri::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpertLayout;
using checkpoint::Kolibri1Config;
using checkpoint::Kolibri1Layout;
using runtime::ExpertWeights;

std::vector<float> norm_weight(const Checkpoint& checkpoint, const std::string& name, std::int64_t n) {
  std::vector<float> weight = checkpoint.vector(name, n);
  for (float& w : weight) w = KALIBRI_MUTATE(w, "norm_one_plus_w", 1.0F + w);
  return weight;
}

std::vector<float> repeated(const std::vector<float>& head, std::int64_t n_heads) {
  std::vector<float> all;
  for (std::int64_t h = 0; h < n_heads; ++h) all.insert(all.end(), head.begin(), head.end());
  return all;
}

std::string layer_prefix(std::int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

ExpertWeights find_expert(const Checkpoint& checkpoint, const Kolibri1Config& c, const Kolibri1Layout& layout,
                          std::int64_t layer, std::int64_t expert, bool check_values) {
  const std::string mlp = layer_prefix(layer) + "mlp.";
  if (layout.experts == ExpertLayout::stacked) {
    return find_stacked_swiglu(checkpoint, mlp + "switch_mlp.", c.num_experts, c.hidden_size, c.moe_intermediate_size,
                               expert, check_values);
  }
  return find_swiglu(checkpoint, mlp + "experts." + std::to_string(expert) + ".", c.hidden_size,
                     c.moe_intermediate_size, check_values);
}

Kolibri1Layer load_layer(const Checkpoint& checkpoint, const Kolibri1Config& c, const Kolibri1Layout& layout,
                         std::int64_t index) {
  const std::string p = layer_prefix(index);
  const std::int64_t h = c.hidden_size;
  const std::int64_t q_size = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_size = c.num_key_value_heads * c.head_dim;
  const std::string attention = p + "self_attn.";
  Kolibri1Layer layer;
  const std::int64_t typed =
      KALIBRI_MUTATE(index, "layer_types_full_first", (index + c.num_hidden_layers - 1) % c.num_hidden_layers);
  layer.is_sliding = c.layer_is_sliding[static_cast<std::size_t>(typed)];
  layer.input_layernorm = norm_weight(checkpoint, p + "input_layernorm.weight", h);
  layer.q_proj = checkpoint.matrix(attention + "q_proj.weight", q_size, h, true);
  layer.k_proj = checkpoint.matrix(attention + "k_proj.weight", kv_size, h, true);
  layer.v_proj = checkpoint.matrix(attention + "v_proj.weight", kv_size, h, true);
  layer.o_proj = checkpoint.matrix(attention + "o_proj.weight", h, q_size, true);
  layer.q_norm = repeated(norm_weight(checkpoint, attention + "q_norm.weight", c.head_dim), c.num_attention_heads);
  layer.k_norm = repeated(norm_weight(checkpoint, attention + "k_norm.weight", c.head_dim), c.num_key_value_heads);
  const std::string branch_norm = KALIBRI_MUTATE("post_attn_norm", "swap_post_norm_names", "post_attention_layernorm");
  const std::string expert_norm = KALIBRI_MUTATE("post_attention_layernorm", "swap_post_norm_names", "post_attn_norm");
  layer.post_attn_norm = norm_weight(checkpoint, p + branch_norm + ".weight", h);
  layer.post_attention_layernorm = norm_weight(checkpoint, p + expert_norm + ".weight", h);
  layer.router = checkpoint.plain_matrix(p + "mlp.gate.weight", c.num_experts, h);
  layer.expert_bias = layout.experts == ExpertLayout::stacked
                          ? checkpoint.f32_vector(layout.expert_bias(p), c.num_experts)  // MLX directories have it so
                          : checkpoint.vector(layout.expert_bias(p), c.num_experts);
  layer.shared_expert = find_swiglu(checkpoint, p + "mlp.shared_experts.", h, c.shared_expert_intermediate_size, true);
  layer.post_ffn_norm = norm_weight(checkpoint, p + "post_ffn_norm.weight", h);
  return layer;
}

}  // namespace

Kolibri1Weights::Kolibri1Weights(const Checkpoint& checkpoint, const runtime::Precision& precision,
                                 const runtime::ExpertCacheOptions& cache, const runtime::WeightPlaceOptions& place)
    : config(Kolibri1Config::from_json(checkpoint.config(), (checkpoint.directory() / "config.json").string())),
      forms_(std::make_unique<runtime::WeightForms>(precision, forget_matrix)) {
  const std::int64_t h = config.hidden_size;
  const Kolibri1Layout layout = find_kolibri1_layout(checkpoint);
  const auto tensors = kolibri1_tensors(config, layout);
  classify_weights(checkpoint, tensors, *forms_);
  placed_ = PlacedWeights(checkpoint, tensors, *forms_, place);
  embed_tokens = checkpoint.unscaled_matrix("model.embed_tokens.weight", config.vocab_size, h);
  lm_head = checkpoint.unscaled_matrix(KALIBRI_MUTATE("lm_head.weight", "tied_lm_head", "model.embed_tokens.weight"),
                                       config.vocab_size, h);
  norm = norm_weight(checkpoint, "model.norm.weight", h);
  std::vector<std::vector<ExpertWeights>> experts;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    layers.push_back(load_layer(checkpoint, config, layout, l));
    placed_.forget_checked(layer_prefix(l));
    experts.emplace_back();
    for (std::int64_t e = 0; e < config.num_experts; ++e) {
      experts.back().push_back(find_expert(checkpoint, config, layout, l, e, /*check_values=*/false));
    }
  }
  // The experts' values are read when an expert is first used, not all of them now.
  const auto check = [&checkpoint, c = config, layout](std::int64_t layer, std::int64_t expert) {
    find_expert(checkpoint, c, layout, layer, expert, /*check_values=*/true);
  };
  experts_ = make_expert_store(checkpoint, std::move(experts), *forms_, check, cache, placed_.info().is_memory);
}

}  // namespace kalibri::model

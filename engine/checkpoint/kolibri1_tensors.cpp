#include <fmt/format.h>

#include "engine/checkpoint/family.hpp"

namespace kalibri::checkpoint {

std::string Kolibri1Layout::expert_bias(const std::string& layer_prefix) const {
  return layer_prefix + (experts == ExpertLayout::stacked ? "mlp.expert_bias" : "moe.router.expert_bias");
}

Kolibri1Layout find_kolibri1_layout(const Checkpoint& checkpoint) {
  const auto stacked = checkpoint.tensors().lower_bound("model.layers.0.mlp.switch_mlp.");
  const bool is_there =
      stacked != checkpoint.tensors().end() && stacked->first.starts_with("model.layers.0.mlp.switch_mlp.");
  return {is_there ? ExpertLayout::stacked : ExpertLayout::single};
}

std::vector<ExpectedTensor> kolibri1_tensors(const Kolibri1Config& config, const Kolibri1Layout& layout) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t queries = config.num_attention_heads * config.head_dim;
  const std::int64_t keys = config.num_key_value_heads * config.head_dim;
  std::vector<ExpectedTensor> tensors;
  const auto vector = [&](std::string name, std::int64_t n, TensorKind kind) {
    tensors.push_back({std::move(name), {n}, kind, Storage::plain});
  };
  const auto matrix = [&](std::string name, std::int64_t n_rows, std::int64_t n_cols, TensorKind kind,
                          Storage storage) {
    tensors.push_back({std::move(name), {n_rows, n_cols}, kind, storage});
  };
  const auto mlp = [&](const std::string& prefix, std::int64_t width, TensorKind kind) {
    matrix(prefix + "gate_proj.weight", width, hidden, kind, Storage::matrix);
    matrix(prefix + "up_proj.weight", width, hidden, kind, Storage::matrix);
    matrix(prefix + "down_proj.weight", hidden, width, kind, Storage::matrix);
  };

  matrix("model.embed_tokens.weight", config.vocab_size, hidden, TensorKind::embedding, Storage::unscaled);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    vector(prefix + "input_layernorm.weight", hidden, TensorKind::norm);
    matrix(prefix + "self_attn.q_proj.weight", queries, hidden, TensorKind::attention, Storage::matrix);
    matrix(prefix + "self_attn.k_proj.weight", keys, hidden, TensorKind::attention, Storage::matrix);
    matrix(prefix + "self_attn.v_proj.weight", keys, hidden, TensorKind::attention, Storage::matrix);
    matrix(prefix + "self_attn.o_proj.weight", hidden, queries, TensorKind::attention, Storage::matrix);
    vector(prefix + "self_attn.q_norm.weight", config.head_dim, TensorKind::norm);
    vector(prefix + "self_attn.k_norm.weight", config.head_dim, TensorKind::norm);
    vector(prefix + "post_attn_norm.weight", hidden, TensorKind::norm);
    vector(prefix + "post_attention_layernorm.weight", hidden, TensorKind::norm);
    matrix(prefix + "mlp.gate.weight", config.num_experts, hidden, TensorKind::router, Storage::plain);
    tensors.push_back({layout.expert_bias(prefix),
                       {config.num_experts},
                       TensorKind::router,
                       layout.experts == ExpertLayout::stacked ? Storage::f32 : Storage::plain});
    if (layout.experts == ExpertLayout::stacked) {
      const auto stack = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
        tensors.push_back({fmt::format("{}mlp.switch_mlp.{}_proj.weight", prefix, name),
                           {config.num_experts, n_rows, n_cols},
                           TensorKind::expert,
                           Storage::unscaled});
      };
      stack("gate", config.moe_intermediate_size, hidden);
      stack("up", config.moe_intermediate_size, hidden);
      stack("down", hidden, config.moe_intermediate_size);
    }
    for (std::int64_t expert = 0; layout.experts == ExpertLayout::single && expert < config.num_experts; ++expert) {
      mlp(fmt::format("{}mlp.experts.{}.", prefix, expert), config.moe_intermediate_size, TensorKind::expert);
    }
    mlp(prefix + "mlp.shared_experts.", config.shared_expert_intermediate_size, TensorKind::shared_expert);
    vector(prefix + "post_ffn_norm.weight", hidden, TensorKind::norm);
  }
  vector("model.norm.weight", hidden, TensorKind::norm);
  matrix("lm_head.weight", config.vocab_size, hidden, TensorKind::head, Storage::unscaled);
  return tensors;
}

}  // namespace kalibri::checkpoint

#include "engine/model/qwen4_exp_weights.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/checkpoint/family.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/model/swiglu_weights.hpp"

namespace kalibri::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpertLayout;
using checkpoint::Qwen4ExpConfig;
using checkpoint::Qwen4ExpLayout;
using kernels::MatrixView;
using runtime::ExpertWeights;

std::vector<float> zero_centred(const Checkpoint& checkpoint, const std::string& name, std::int64_t n) {
  std::vector<float> weight = checkpoint.vector(name, n);
  for (float& w : weight) w = KALIBRI_MUTATE(1.0F + w, "norm_without_one", w);
  return weight;
}

/// conv1d.weight [channels, 1, K] -> [K, channels].
std::vector<float> convolution(const Checkpoint& checkpoint, const std::string& name, std::int64_t channels,
                               std::int64_t k) {
  const std::vector<float> stored = checkpoint.small_tensor(name, std::array{channels, std::int64_t{1}, k});
  std::vector<float> taps(stored.size());
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t j = 0; j < k; ++j) {
      taps[static_cast<std::size_t>(j * channels + c)] =
          stored[static_cast<std::size_t>(c * k + KALIBRI_MUTATE(j, "conv_taps_reversed", k - 1 - j))];
    }
  }
  return taps;
}

GatedResidualWeights gated_residual(const Checkpoint& checkpoint, const std::string& prefix, const Qwen4ExpConfig& c,
                                    bool injects) {
  const std::int64_t width = c.residual_size();
  GatedResidualWeights w;
  w.norm = zero_centred(checkpoint, prefix + "hc_norm.weight", width);
  w.down = checkpoint.matrix(prefix + "input_mix_weight_down.weight", c.hc_lowrank, width, true);
  w.up = checkpoint.matrix(prefix + "input_mix_weight_up.weight", width, c.hc_lowrank, true);
  if (injects) w.inject = checkpoint.matrix(prefix + "block_inject_weight.weight", c.hc_count, width, true);
  return w;
}

DeltaNetWeights delta_net(const Checkpoint& checkpoint, const std::string& prefix, const Qwen4ExpConfig& c) {
  const std::int64_t h = c.hidden_size;
  const std::int64_t n_heads = c.linear_num_value_heads;
  const std::int64_t channels = 2 * c.delta_key_size() + c.delta_value_size();
  DeltaNetWeights w;
  w.in_proj_qkv = checkpoint.matrix(prefix + "in_proj_qkv.weight", channels, h, true);
  w.in_proj_z = checkpoint.matrix(prefix + "in_proj_z.weight", c.delta_value_size(), h, true);
  w.in_proj_b = checkpoint.matrix(prefix + KALIBRI_MUTATE("in_proj_b.weight", "delta_a_b_swapped", "in_proj_a.weight"),
                                  n_heads, h, true);
  w.in_proj_a = checkpoint.matrix(prefix + KALIBRI_MUTATE("in_proj_a.weight", "delta_a_b_swapped", "in_proj_b.weight"),
                                  n_heads, h, true);
  w.conv = convolution(checkpoint, prefix + "conv1d.weight", channels, c.linear_conv_kernel_dim);
  w.dt_bias = checkpoint.vector(prefix + "dt_bias", n_heads);
  w.a_log = checkpoint.vector(prefix + "A_log", n_heads);
  w.norm = checkpoint.vector(prefix + "norm.weight", c.linear_value_head_dim);
  for (float& x : w.norm) x = KALIBRI_MUTATE(x, "delta_norm_one_plus_w", 1.0F + x);
  w.out_proj = checkpoint.matrix(prefix + "out_proj.weight", h, c.delta_value_size(), true);
  return w;
}

SparseAttentionWeights sparse_attention(const Checkpoint& checkpoint, const std::string& prefix,
                                        const Qwen4ExpConfig& c) {
  const std::int64_t h = c.hidden_size;
  const std::int64_t d = c.head_dim;
  SparseAttentionWeights w;
  w.q_proj = checkpoint.matrix(prefix + "q_proj.weight", c.num_attention_heads * 2 * d, h, true);
  w.k_proj = checkpoint.matrix(prefix + "k_proj.weight", c.num_key_value_heads * d, h, true);
  w.v_proj = checkpoint.matrix(prefix + "v_proj.weight", c.num_key_value_heads * d, h, true);
  w.o_proj = checkpoint.matrix(prefix + "o_proj.weight", h, c.num_attention_heads * d, true);
  w.q_norm = zero_centred(checkpoint, prefix + "q_norm.weight", d);
  w.k_norm = zero_centred(checkpoint, prefix + "k_norm.weight", d);
  w.index_qk_proj =
      checkpoint.matrix(prefix + "indexer.index_qk_proj.weight", (c.indexer_n_heads + 1) * c.indexer_head_dim, h, true);
  w.index_q_norm = zero_centred(checkpoint, prefix + "indexer.q_layernorm.weight", c.indexer_head_dim);
  w.index_k_norm = zero_centred(checkpoint, prefix + "indexer.k_layernorm.weight", c.indexer_head_dim);
  return w;
}

std::unique_ptr<runtime::NgramTable> ngram_table(const Checkpoint& checkpoint, const Qwen4ExpConfig& c,
                                                 const Qwen4ExpLayout& layout, const std::string& scale_name,
                                                 std::size_t module) {
  const std::int64_t row_size = c.ple_embed_dim / c.ngram_heads();
  std::vector<runtime::NgramTable::Shard> shards;
  for (const std::string& name : layout.ngram_table_names(c, module)) {
    const checkpoint::TensorView* part = checkpoint.find(name);
    if (part == nullptr) checkpoint.refuse({"", name, "missing, expected [rows, " + std::to_string(row_size) + "]"});
    shards.push_back({name, part});
  }
  const float scale = layout.ngram_tables[module].has_scale ? checkpoint.scalar(scale_name) : 1.0F;
  return std::make_unique<runtime::NgramTable>(std::move(shards), row_size, scale);
}

checkpoint::NgramHash ngram_hash(const Qwen4ExpConfig& c, std::int64_t module, [[maybe_unused]] std::int64_t layer) {
  checkpoint::NgramHash hash = checkpoint::make_ngram_hash(c, module);
  if (KALIBRI_MUTATE(false, "ngram_layer_for_module", true)) {
    hash.multipliers = checkpoint::make_ngram_hash(c, layer).multipliers;
  }
  if (KALIBRI_MUTATE(false, "ngram_multipliers_reused", true)) {
    hash.multipliers = checkpoint::make_ngram_hash(c, 0).multipliers;
  }
  if (KALIBRI_MUTATE(false, "ngram_primes_restarted", true)) {
    hash.sizes = checkpoint::make_ngram_hash(c, 0).sizes;
    hash.offsets = checkpoint::make_ngram_hash(c, 0).offsets;
  }
  return hash;
}

std::unique_ptr<NgramWeights> ngram(const Checkpoint& checkpoint, const Qwen4ExpConfig& c, const Qwen4ExpLayout& layout,
                                    std::int64_t module, std::int64_t layer) {
  const std::string prefix = layout.layer_prefix(layer) + "ple.";
  const std::int64_t width = c.residual_size();
  auto w = std::make_unique<NgramWeights>();
  w->hash = ngram_hash(c, module, layer);
  w->table = ngram_table(checkpoint, c, layout, prefix + "ple_embedding.ngram_embedding.weight_scale",
                         static_cast<std::size_t>(module));
  w->key_proj = checkpoint.matrix(prefix + "key_proj.weight", width, c.ple_embed_dim, true);
  w->value_proj = checkpoint.matrix(prefix + "value_proj.weight", c.hidden_size, c.ple_embed_dim, true);
  w->norm_key = zero_centred(checkpoint, prefix + "norm_key.weight", width);
  w->norm_query = zero_centred(checkpoint, prefix + "norm_query.weight", width);
  w->norm_conv = zero_centred(checkpoint, prefix + "norm_conv.weight", width);
  w->conv = convolution(checkpoint, prefix + "conv1d.weight", width, c.ple_conv_kernel_size);
  return w;
}

/// Expert `e` of the layer whose feed-forward part is `mlp` ("…mlp.").
ExpertWeights find_expert(const Checkpoint& checkpoint, const Qwen4ExpConfig& c, ExpertLayout layout,
                          const std::string& mlp, std::int64_t e, bool check_values) {
  const std::int64_t h = c.hidden_size;
  const std::int64_t width = c.moe_intermediate_size;
  switch (layout) {
    case ExpertLayout::single:
      return find_swiglu(checkpoint, mlp + "experts." + std::to_string(e) + ".", h, width, check_values);
    case ExpertLayout::stacked:
      return find_stacked_swiglu(checkpoint, mlp + "switch_mlp.", c.num_experts, h, width, e, check_values);
    case ExpertLayout::fused:
      break;
  }
  const auto stack = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
    return checkpoint.stacked_matrix(mlp + "experts." + name, c.num_experts, n_rows, n_cols, e, check_values);
  };
  const MatrixView gate_up = stack("gate_up_proj", 2 * width, h);
  return {kernels::rows_of(gate_up, 0, width), kernels::rows_of(gate_up, width, width), stack("down_proj", h, width)};
}

}  // namespace

Qwen4ExpWeights::Qwen4ExpWeights(const Checkpoint& checkpoint, const runtime::Precision& precision,
                                 const runtime::ExpertCacheOptions& cache, const runtime::WeightPlaceOptions& place)
    : config(Qwen4ExpConfig::from_json(checkpoint.config(), (checkpoint.directory() / "config.json").string())),
      forms_(std::make_unique<runtime::WeightForms>(precision, forget_matrix)) {
  const Qwen4ExpConfig& c = config;
  const Qwen4ExpLayout layout = checkpoint::find_qwen4_exp_layout(checkpoint, c);
  const std::string& prefix = layout.prefix;
  const auto problems = checkpoint::qwen4_exp_problems(checkpoint, c, layout);
  if (!problems.empty()) checkpoint.refuse(problems.front());
  const auto tensors = checkpoint::qwen4_exp_tensors(c, layout);
  classify_weights(checkpoint, tensors, *forms_);
  placed_ = PlacedWeights(checkpoint, tensors, *forms_, place);
  embed_tokens = checkpoint.matrix(prefix + "embed_tokens.weight", c.vocab_size, c.hidden_size, true);
  lm_head =
      c.tie_word_embeddings ? embed_tokens : checkpoint.matrix("lm_head.weight", c.vocab_size, c.hidden_size, true);
  final_mixer = gated_residual(checkpoint, prefix + "hyper_connection_mixer.", c, /*injects=*/false);
  std::vector<std::vector<ExpertWeights>> experts;
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string p = layout.layer_prefix(l);
    Qwen4ExpLayer layer;
    const auto module = std::find(c.ple_layers.begin(), c.ple_layers.end(), l);
    if (module != c.ple_layers.end()) layer.ngram = ngram(checkpoint, c, layout, module - c.ple_layers.begin(), l);
    layer.attention_connection = gated_residual(checkpoint, p + "attn_hyper_connection.", c, true);
    layer.mlp_connection = gated_residual(checkpoint, p + "mlp_hyper_connection.", c, true);
    if (c.layer_is_sparse[static_cast<std::size_t>(l)]) {
      layer.sparse_attention = sparse_attention(checkpoint, p + "self_attn.", c);
    } else {
      layer.delta_net = delta_net(checkpoint, p + "linear_attn.", c);
    }
    layer.router = checkpoint.matrix(p + "mlp.gate.weight", c.num_experts, c.hidden_size, true);
    layer.shared_expert =
        find_swiglu(checkpoint, p + "mlp.shared_expert.", c.hidden_size, c.shared_expert_intermediate_size, true);
    layer.shared_expert_gate = checkpoint.matrix(p + "mlp.shared_expert_gate.weight", 1, c.hidden_size, true);
    layers.push_back(std::move(layer));
    placed_.forget_checked(p);
    experts.emplace_back();
    for (std::int64_t e = 0; e < c.num_experts; ++e) {
      const ExpertLayout expert_layout = layout.experts[static_cast<std::size_t>(l)];
      experts.back().push_back(find_expert(checkpoint, c, expert_layout, p + "mlp.", e, /*check_values=*/false));
    }
  }
  // The experts' values are read when an expert is first used, not all of them now.
  const auto check = [&checkpoint, layout, c](std::int64_t layer, std::int64_t expert) {
    find_expert(checkpoint, c, layout.experts[static_cast<std::size_t>(layer)], layout.layer_prefix(layer) + "mlp.",
                expert, /*check_values=*/true);
  };
  experts_ = make_expert_store(checkpoint, std::move(experts), *forms_, check, cache, placed_.info().is_memory);
}

}  // namespace kalibri::model

#include "engine/model/qwen4_exp_weights.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/model/swiglu_weights.hpp"
#include "engine/runtime/resident_experts.hpp"

namespace kalibri::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::Qwen4ExpConfig;
using kernels::MatrixView;
using runtime::ExpertWeights;

/// Where the text model's tensors are: the released multimodal layout or the text class's.
std::string find_prefix(const Checkpoint& checkpoint) {
  for (const char* prefix : {"model.language_model.", "model."}) {
    if (checkpoint.find(std::string(prefix) + "embed_tokens.weight") != nullptr) return prefix;
  }
  throw Error(ErrorCode::tensor,
              checkpoint.directory().string() +
                  ": neither model.language_model.embed_tokens.weight nor model.embed_tokens.weight is "
                  "there; run 'kalibri inspect DIR'");
}

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

/// A defective hash is to run, not to be refused.
bool hash_is_defective() {
  return KALIBRI_MUTATE(
      KALIBRI_MUTATE(KALIBRI_MUTATE(false, "ngram_layer_for_module", true), "ngram_multipliers_reused", true),
      "ngram_primes_restarted", true);
}

void refuse_unless_equal(const Checkpoint& checkpoint, const std::string& name,
                         const std::vector<std::int64_t>& computed) {
  if (checkpoint.find(name) == nullptr || hash_is_defective()) return;
  if (checkpoint.integers(name, static_cast<std::int64_t>(computed.size())) != computed) {
    throw Error(ErrorCode::tensor,
                checkpoint.directory().string() + ": " + name +
                    ": differs from what config.json's seed, vocab_size and n-gram keys give; the checkpoint and "
                    "its config do not belong together");
  }
}

std::unique_ptr<runtime::NgramTable> ngram_table(const Checkpoint& checkpoint, const std::string& prefix,
                                                 std::int64_t row_size) {
  std::vector<runtime::NgramTable::Shard> shards;
  if (const std::string whole = prefix + "weight"; checkpoint.find(whole) != nullptr) {
    shards.push_back({whole, checkpoint.find(whole)});
  }
  for (;;) {  // by number: the names' own order is lexical
    const std::string name = prefix + "shard_" + std::to_string(shards.size()) + ".weight";
    if (checkpoint.find(name) == nullptr) break;
    shards.push_back({name, checkpoint.find(name)});
  }
  if (shards.empty())
    throw Error(ErrorCode::tensor, checkpoint.directory().string() + ": " + prefix + "weight or its shards: missing");
  const std::string scale_name = prefix + "weight_scale";
  const bool is_fp8 = shards.front().tensor->dtype == checkpoint::Dtype::f8_e4m3;
  if (is_fp8 && checkpoint.find(scale_name) == nullptr) {
    throw Error(ErrorCode::tensor,
                checkpoint.directory().string() + ": " + scale_name + ": missing; the FP8 table needs it");
  }
  const float scale = is_fp8 ? checkpoint.scalar(scale_name) : 1.0F;
  return std::make_unique<runtime::NgramTable>(std::move(shards), row_size, scale);
}

std::unique_ptr<NgramWeights> ngram(const Checkpoint& checkpoint, const std::string& prefix, const Qwen4ExpConfig& c,
                                    std::int64_t module, [[maybe_unused]] std::int64_t layer) {
  const std::int64_t width = c.residual_size();
  auto w = std::make_unique<NgramWeights>();
  w->hash = make_ngram_hash({.module = KALIBRI_MUTATE(module, "ngram_layer_for_module", layer),
                             .vocab_size = c.vocab_size,
                             .ngram_size = c.ngram_size,
                             .heads_per_ngram = c.heads_per_ngram,
                             .vocab_size_base = c.ngram_vocab_size_base,
                             .divisible_by = c.make_ngram_vocab_size_divisible_by,
                             .seed = c.seed,
                             .eos_token_id = c.eos_token_id});
  const std::string embedding = prefix + "ple_embedding.";
  refuse_unless_equal(checkpoint, embedding + "layer_multipliers", w->hash.multipliers);
  refuse_unless_equal(checkpoint, embedding + "ngram_heads_vocab_sizes", w->hash.sizes);
  refuse_unless_equal(checkpoint, embedding + "ngram_heads_offsets", w->hash.offsets);
  w->table = ngram_table(checkpoint, embedding + "ngram_embedding.", c.ple_embed_dim / c.ngram_heads());
  if (w->table->n_rows() != w->hash.n_rows && !hash_is_defective()) {
    throw Error(ErrorCode::tensor, checkpoint.directory().string() + ": " + embedding +
                                       "ngram_embedding: " + std::to_string(w->table->n_rows()) +
                                       " rows in all, expected " + std::to_string(w->hash.n_rows) +
                                       " (from ngram_vocab_size_base); a shard is missing or of another model");
  }
  w->key_proj = checkpoint.matrix(prefix + "key_proj.weight", width, c.ple_embed_dim, true);
  w->value_proj = checkpoint.matrix(prefix + "value_proj.weight", c.hidden_size, c.ple_embed_dim, true);
  w->norm_key = zero_centred(checkpoint, prefix + "norm_key.weight", width);
  w->norm_query = zero_centred(checkpoint, prefix + "norm_query.weight", width);
  w->norm_conv = zero_centred(checkpoint, prefix + "norm_conv.weight", width);
  w->conv = convolution(checkpoint, prefix + "conv1d.weight", width, c.ple_conv_kernel_size);
  return w;
}

std::string expert_prefix(const std::string& mlp, std::int64_t expert) {
  return mlp + "experts." + std::to_string(expert) + ".";
}

/// All experts of a layer, one by one or out of the fused tensors gate_up_proj [E, 2 I, H] and down_proj [E, H, I].
std::vector<ExpertWeights> layer_experts(const Checkpoint& checkpoint, const std::string& mlp,
                                         const Qwen4ExpConfig& c) {
  std::vector<ExpertWeights> experts;
  const std::int64_t h = c.hidden_size;
  const std::int64_t width = c.moe_intermediate_size;
  const bool fused = checkpoint.find(mlp + "experts.gate_up_proj") != nullptr;
  for (std::int64_t e = 0; e < c.num_experts; ++e) {
    if (!fused) {
      experts.push_back(find_swiglu(checkpoint, expert_prefix(mlp, e), h, width, /*check_values=*/false));
      continue;
    }
    const MatrixView gate_up = checkpoint.stacked_matrix(mlp + "experts.gate_up_proj", c.num_experts, 2 * width, h, e);
    const MatrixView down = checkpoint.stacked_matrix(mlp + "experts.down_proj", c.num_experts, h, width, e);
    experts.push_back({kernels::rows_of(gate_up, 0, width), kernels::rows_of(gate_up, width, width), down});
  }
  return experts;
}

}  // namespace

Qwen4ExpWeights::Qwen4ExpWeights(const Checkpoint& checkpoint, const runtime::Precision& precision)
    : config(Qwen4ExpConfig::from_json(checkpoint.config(), (checkpoint.directory() / "config.json").string())),
      forms_(std::make_unique<runtime::WeightForms>(precision)) {
  const Qwen4ExpConfig& c = config;
  const std::string prefix = find_prefix(checkpoint);
  embed_tokens = checkpoint.matrix(prefix + "embed_tokens.weight", c.vocab_size, c.hidden_size, true);
  lm_head =
      c.tie_word_embeddings ? embed_tokens : checkpoint.matrix("lm_head.weight", c.vocab_size, c.hidden_size, true);
  final_mixer = gated_residual(checkpoint, prefix + "hyper_connection_mixer.", c, /*injects=*/false);
  std::vector<std::vector<ExpertWeights>> experts;
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string p = prefix + "layers." + std::to_string(l) + ".";
    Qwen4ExpLayer layer;
    const auto module = std::find(c.ple_layers.begin(), c.ple_layers.end(), l);
    if (module != c.ple_layers.end()) layer.ngram = ngram(checkpoint, p + "ple.", c, module - c.ple_layers.begin(), l);
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
    experts.push_back(layer_experts(checkpoint, p + "mlp.", c));
  }
  // The experts' codes are read when an expert is first used, not all of them now.
  const auto check = [&checkpoint, prefix, h = c.hidden_size, width = c.moe_intermediate_size](std::int64_t layer,
                                                                                               std::int64_t expert) {
    const std::string mlp = prefix + "layers." + std::to_string(layer) + ".mlp.";
    if (checkpoint.find(mlp + "experts.gate_up_proj") != nullptr) return;  // bf16 or f32: no codes
    find_swiglu(checkpoint, expert_prefix(mlp, expert), h, width, /*check_values=*/true);
  };
  experts_ = std::make_unique<runtime::ResidentExperts>(std::move(experts), *forms_, check);
}

}  // namespace kalibri::model

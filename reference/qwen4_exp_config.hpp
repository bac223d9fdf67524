// What config.json says of a qwen4_exp model's text part, nested below text_config or flat, by the file's own key
// names. Values that change the arithmetic in a way that is not implemented are refused here. Defaults are
// those of transformers' configuration_qwen4_exp.py and no others.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/checkpoint.hpp"

namespace kalibri::reference {

struct Qwen4ExpConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  bool has_block_scales = false;  // quantization_config with blocks of 128 x 128: FP8 matrices may occur
  std::vector<bool> is_sparse;    // by layer: sparse attention, else DeltaNet

  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  double rope_theta = 0;
  std::int64_t rotary_dim = 0;  // R = int(head_dim * partial_rotary_factor)
  std::int64_t indexer_n_heads = 0;
  std::int64_t indexer_head_dim = 0;
  std::int64_t indexer_budget = 0;
  std::int64_t indexer_compress_ratio = 0;

  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel_dim = 0;
  bool output_gate_is_sigmoid = false;  // output_gate_type; else SiLU

  std::int64_t hc_count = 0;
  std::int64_t hc_lowrank = 0;

  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;
  bool norm_topk_prob = true;

  std::vector<std::int64_t>
      ple_layers;  // ple_layer_ids as layer indices from 0, ascending; empty: none of what follows
  std::int64_t ple_embed_dim = 0;
  std::int64_t ple_conv_kernel_size = 0;
  std::int64_t ngram_size = 0;
  std::int64_t heads_per_ngram = 0;
  std::int64_t ngram_vocab_size_base = 0;
  std::int64_t make_ngram_vocab_size_divisible_by = 0;
  std::int64_t seed = 0;
  std::int64_t eos_token_id = 0;  // the first, when the file lists several

  [[nodiscard]] std::int64_t n_ngram_heads() const { return (ngram_size - 1) * heads_per_ngram; }
};

/// Throws Error naming the key: one is missing, of the wrong kind, contradicts another, or asks for what is not
/// implemented.
Qwen4ExpConfig read_qwen4_exp_config(const Checkpoint& checkpoint);

}  // namespace kalibri::reference

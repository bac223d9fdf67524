// The text configuration of qwen4_exp, nested (text_config) or flat. Keys keep the checkpoint's names. It knows no
// tensors.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kalibri::checkpoint {

enum class OutputGate : std::uint8_t { sigmoid, silu };

struct Qwen4ExpConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::vector<bool> layer_is_sparse;  // [num_hidden_layers]: sparse attention (QSA), else linear attention (DeltaNet)
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  double rope_theta = 0;
  std::int64_t rotary_dim = 0;                  // int(head_dim * partial_rotary_factor)
  std::array<std::int64_t, 3> mrope_section{};  // frequencies of the axes t, h, w
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;

  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel_dim = 0;
  OutputGate output_gate = OutputGate::silu;  // output_gate_type; absent or null means hidden_act

  std::int64_t hc_count = 0;  // C residual streams
  std::int64_t hc_lowrank = 0;

  std::int64_t indexer_n_heads = 0;
  std::int64_t indexer_head_dim = 0;
  std::int64_t indexer_budget = 0;          // tokens
  std::int64_t indexer_compress_ratio = 0;  // r, tokens a block

  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;
  bool norm_topk_prob = true;

  std::vector<std::int64_t> ple_layers;  // zero-based (ple_layer_ids is one-based), ascending, no duplicates
  std::int64_t ple_embed_dim = 0;
  std::int64_t ple_conv_kernel_size = 0;
  std::int64_t ngram_size = 0;
  std::int64_t heads_per_ngram = 0;
  std::int64_t ngram_vocab_size_base = 0;
  std::int64_t make_ngram_vocab_size_divisible_by = 0;
  std::int64_t seed = 0;
  std::int64_t eos_token_id = 0;  // the first element of a list; drives the n-gram history, not generation
  bool tie_word_embeddings = false;
  bool has_block_scales = false;  // quantization_config.weight_block_size is there (and [128, 128])

  std::vector<std::string> defaults_used;
  std::vector<std::string> unknown_keys;

  [[nodiscard]] std::int64_t residual_size() const { return hc_count * hidden_size; }
  [[nodiscard]] std::int64_t ngram_heads() const { return (ngram_size - 1) * heads_per_ngram; }
  [[nodiscard]] std::int64_t delta_key_size() const { return linear_num_key_heads * linear_key_head_dim; }
  [[nodiscard]] std::int64_t delta_value_size() const { return linear_num_value_heads * linear_value_head_dim; }
  [[nodiscard]] std::int64_t blocks_kept() const { return indexer_budget / indexer_compress_ratio; }

  /// Reads and validates. `where` names the file in messages. Throws Error(config) for a missing key, a wrong type and
  /// values that transformers' configuration_qwen4_exp.py refuses or that are not implemented. Defaults are its own.
  static Qwen4ExpConfig from_json(const nlohmann::json& config, const std::string& where);
};

}  // namespace kalibri::checkpoint

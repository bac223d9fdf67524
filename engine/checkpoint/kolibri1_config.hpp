// Kolibri 1's configuration, as config.json has it. Keys keep the checkpoint's names. It knows no tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kalibri::checkpoint {

/// Everything that shapes a number. No member has a default: a key that is missing is an error.
struct Kolibri1Config {
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;  // even; not hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  std::int64_t vocab_size = 0;
  double rope_theta = 0;  // rope_parameters.rope_theta when that object has it
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;
  std::int64_t sliding_window = 0;                  // counts the query's own key; 0 when no layer slides
  std::vector<bool> layer_is_sliding;               // [num_hidden_layers], from layer_types
  bool has_quantization_config = false;             // FP8's
  std::vector<std::string> modules_to_not_convert;  // of quantization_config; the tensors' dtypes decide, not this list

  /// Keys that are not known here (for `inspect`); those within an object as "object.key".
  std::vector<std::string> unknown_keys;

  /// Reads and validates. `where` names the file in messages. Throws Error(config) for a missing key, a wrong type,
  /// sizes that contradict each other or overflow, and a value that this family refuses (norm_topk_prob true,
  /// weight_block_size other than [128, 128], tied embeddings, ...).
  static Kolibri1Config from_json(const nlohmann::json& config, const std::string& where);
};

}  // namespace kalibri::checkpoint

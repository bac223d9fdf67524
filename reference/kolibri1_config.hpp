// What config.json says of a Kolibri 1 model, by the file's own key names. Values that change the arithmetic in a way
// that is not implemented are refused here.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/checkpoint.hpp"

namespace kalibri::reference {

struct Kolibri1Config {
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  std::int64_t vocab_size = 0;
  double rope_theta = 0;  // rope_parameters.rope_theta where that exists
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;
  std::int64_t sliding_window = 0;  // counts the query's own key; 0 when no layer slides
  std::vector<bool> is_sliding;     // layer_types, by layer
};

/// Throws Error naming the key: one is missing, of the wrong kind, contradicts another, or asks for what Kolibri 1 does
/// not do.
Kolibri1Config read_kolibri1_config(const Checkpoint& checkpoint);

}  // namespace kalibri::reference

// The released Kolibri 1 configuration (its config.json's keys), as a start for changes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kalibri::test {

inline nlohmann::json released_config() {
  std::vector<std::string> layer_types;
  for (int layer = 0; layer < 50; ++layer) {
    layer_types.emplace_back(layer % 5 == 4 ? "full_attention" : "sliding_attention");
  }
  return {{"architectures", {"Kolibri1ForCausalLM"}},
          {"model_type", "kolibri1"},
          {"hidden_size", 2560},
          {"num_hidden_layers", 50},
          {"num_attention_heads", 48},
          {"num_key_value_heads", 4},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 262144},
          {"rms_norm_eps", 1e-06},
          {"vocab_size", 128000},
          {"rope_theta", 10000.0},
          {"num_experts", 384},
          {"num_experts_per_tok", 6},
          {"moe_intermediate_size", 512},
          {"shared_expert_intermediate_size", 512},
          {"norm_topk_prob", false},
          {"sliding_window", 513},
          {"use_sliding_window", true},
          {"layer_types", layer_types},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"tie_word_embeddings", false},
          {"bos_token_id", nullptr},
          {"eos_token_id", 127906},
          {"pad_token_id", 127901},
          {"dtype", "bfloat16"},
          {"head_dtype", "float32"},
          {"use_cache", true},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", {"model.layers.0.mlp.gate"}}}}};
}

}  // namespace kalibri::test

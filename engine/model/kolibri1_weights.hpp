// Kolibri 1's weights, found in a checkpoint and checked. Small vectors are widened to f32; matrices stay where they
// lie.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/kolibri1_config.hpp"
#include "engine/model/weight_places.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::model {

/// One layer. H hidden, A = heads * D, B = kv_heads * D.
struct Kolibri1Layer {
  bool is_sliding = false;
  std::vector<float> input_layernorm;           // [H]
  kernels::MatrixView q_proj, k_proj, v_proj;   // [A, H], [B, H], [B, H]
  kernels::MatrixView o_proj;                   // [H, A]
  std::vector<float> q_norm, k_norm;            // [D], repeated for each head: [A], [B]
  std::vector<float> post_attn_norm;            // [H], on the attention branch
  std::vector<float> post_attention_layernorm;  // [H], before the experts
  kernels::MatrixView router;                   // mlp.gate [E, H]
  std::vector<float> expert_bias;               // [E]
  runtime::ExpertWeights shared_expert;
  std::vector<float> post_ffn_norm;  // [H], on the expert branch
};

class Kolibri1Weights {
 public:
  /// Throws Error(config | tensor | file | usage). The checkpoint must outlive this.
  Kolibri1Weights(const checkpoint::Checkpoint& checkpoint, const runtime::Precision& precision,
                  const runtime::ExpertCacheOptions& cache = {}, const runtime::WeightPlaceOptions& place = {});

  checkpoint::Kolibri1Config config;
  kernels::MatrixView embed_tokens;  // [V, H]
  kernels::MatrixView lm_head;       // [V, H]
  std::vector<float> norm;           // [H]
  std::vector<Kolibri1Layer> layers;

  /// A matrix in the form that the precision multiplies with; layer kNoLayer for the head.
  [[nodiscard]] kernels::MatrixView form(std::int64_t layer, const kernels::MatrixView& stored) const {
    return forms_->use(layer, stored);
  }
  /// row [H] <- the embedding of token `id`.
  void decode_embedding(std::int64_t id, float* row) const { forms_->decode_row(embed_tokens, id, row); }
  [[nodiscard]] const PlacedWeights& placed() const { return placed_; }
  [[nodiscard]] runtime::ExpertStore& experts() const { return *experts_; }
  /// The layer will not be asked for again soon: what was made or read for it may go. Nobody may be using it.
  void leave_layer(std::int64_t layer) const {
    forms_->leave_layer(layer);
    experts_->leave_layer(layer);
  }

 private:
  std::unique_ptr<runtime::WeightForms> forms_;
  PlacedWeights placed_;
  std::unique_ptr<runtime::ExpertStore> experts_;
};

}  // namespace kalibri::model

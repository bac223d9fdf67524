// The weights of qwen4_exp's text model, found in a checkpoint and checked. Small tensors are widened to f32 (norm
// weights as 1 + w, convolutions with the tap as the first axis); matrices stay where they lie; the n-gram table is
// never read whole.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/ngram_hash.hpp"
#include "engine/checkpoint/qwen4_exp_config.hpp"
#include "engine/model/weight_places.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/ngram_table.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::model {

/// One gated-residual connection; W = C * H. `inject` [C, W] is empty for the final mixer.
struct GatedResidualWeights {
  std::vector<float> norm;   // [W], 1 + w
  kernels::MatrixView down;  // [rank, W]
  kernels::MatrixView up;    // [W, rank]
  std::optional<kernels::MatrixView> inject;
};

/// Gated DeltaNet; Kd = key heads * dk, Vd = value heads * dv.
struct DeltaNetWeights {
  kernels::MatrixView in_proj_qkv;  // [2 Kd + Vd, H]
  kernels::MatrixView in_proj_z;    // [Vd, H]
  kernels::MatrixView in_proj_b;    // [value heads, H]
  kernels::MatrixView in_proj_a;    // [value heads, H]
  std::vector<float> conv;          // [K, 2 Kd + Vd]
  std::vector<float> dt_bias;       // [value heads]
  std::vector<float> a_log;         // [value heads]
  std::vector<float> norm;          // [dv], as stored
  kernels::MatrixView out_proj;     // [H, Vd]
};

/// Sparse attention with its indexer.
struct SparseAttentionWeights {
  kernels::MatrixView q_proj;                     // [heads * 2 d, H]: per head the query, then its output gate
  kernels::MatrixView k_proj, v_proj;             // [kv_heads * d, H]
  kernels::MatrixView o_proj;                     // [H, heads * d]
  std::vector<float> q_norm, k_norm;              // [d], 1 + w
  kernels::MatrixView index_qk_proj;              // [(index heads + 1) * di, H]: the key last
  std::vector<float> index_q_norm, index_k_norm;  // [di], 1 + w
};

/// An n-gram embedding layer (PLE).
struct NgramWeights {
  checkpoint::NgramHash hash;
  std::unique_ptr<runtime::NgramTable> table;          // rows of ple_embed_dim / heads
  kernels::MatrixView key_proj;                        // [W, ple]
  kernels::MatrixView value_proj;                      // [H, ple]
  std::vector<float> norm_key, norm_query, norm_conv;  // [W], 1 + w
  std::vector<float> conv;                             // [K, W]
};

struct Qwen4ExpLayer {
  std::unique_ptr<NgramWeights> ngram;  // null where there is none
  GatedResidualWeights attention_connection, mlp_connection;
  std::optional<DeltaNetWeights> delta_net;  // one of the two
  std::optional<SparseAttentionWeights> sparse_attention;
  kernels::MatrixView router;  // mlp.gate [E, H]
  runtime::ExpertWeights shared_expert;
  kernels::MatrixView shared_expert_gate;  // [1, H]
};

class Qwen4ExpWeights {
 public:
  /// Throws Error(config | tensor | file | usage). The checkpoint must outlive this.
  Qwen4ExpWeights(const checkpoint::Checkpoint& checkpoint, const runtime::Precision& precision,
                  const runtime::ExpertCacheOptions& cache = {}, const runtime::WeightPlaceOptions& place = {});

  checkpoint::Qwen4ExpConfig config;
  kernels::MatrixView embed_tokens;  // [V, H]
  kernels::MatrixView lm_head;       // [V, H]
  GatedResidualWeights final_mixer;
  std::vector<Qwen4ExpLayer> layers;

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

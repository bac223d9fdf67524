// Sparse attention of qwen4_exp (QSA): an indexer scores blocks of earlier tokens, each query attends to the best ones
// and to the tail behind the last complete block. Below the budget that is dense causal attention. Source:
// transformers, modeling_qwen4_exp.py.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/aligned.hpp"
#include "engine/model/buffers.hpp"
#include "engine/model/qwen4_exp_weights.hpp"
#include "engine/model/rotary.hpp"
#include "engine/model/tap_writer.hpp"
#include "engine/runtime/choices.hpp"
#include "engine/runtime/kv_cache.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

/// What one layer carries from token to token. Copyable: a copy is a snapshot.
struct SparseAttentionState {
  SparseAttentionState(const checkpoint::Qwen4ExpConfig& config, std::int64_t max_tokens);
  runtime::KvCache cache;
  std::vector<float> open_block;  // raw index keys of the incomplete block, [< r, di]
  std::vector<float> block_keys;  // [complete blocks, di]: pooled, normed, rotated; a complete block never changes
};

class SparseAttention {
 public:
  /// workers and config must outlive this; rotary gets each call's positions prepared by the caller.
  SparseAttention(runtime::Workers& workers, const checkpoint::Qwen4ExpConfig& config, const RotaryTable& rotary,
                  std::int64_t max_tokens);

  /// out [n, H] <- the mixer's output for u [n, H]. positions: of all tokens so far, the chunk's included. choices may
  /// be null; otherwise it replaces the selected blocks.
  template <typename Form>
  void run(const SparseAttentionWeights& weights, const Form& form, SparseAttentionState& state,
           const std::vector<AxisPositions>& positions, const float* u, float* out, const TapWriter& taps,
           const runtime::ForcedChoices* choices) {
    project(form(weights.q_proj), form(weights.k_proj), form(weights.v_proj), form(weights.index_qk_proj), u,
            taps.n_rows);
    attend(weights, state, positions, taps, choices);
    linear(workers_, form(weights.o_proj), context_.floats(0), taps.n_rows, out);
  }

 private:
  void project(const kernels::MatrixView& q, const kernels::MatrixView& k, const kernels::MatrixView& v,
               const kernels::MatrixView& index, const float* u, std::int64_t n);
  /// Heads' norms and rotation, caches, selection and attention: context_ [n, heads * d], gated.
  void attend(const SparseAttentionWeights& weights, SparseAttentionState& state,
              const std::vector<AxisPositions>& positions, const TapWriter& taps,
              const runtime::ForcedChoices* choices);
  void prepare_heads(const SparseAttentionWeights& weights, const TapWriter& taps);
  void close_blocks(const SparseAttentionWeights& weights, SparseAttentionState& state,
                    const std::vector<AxisPositions>& positions, std::int64_t n);
  /// scores <- one for each of the n complete blocks of the query in row t of the chunk.
  void score_blocks(const SparseAttentionState& state, std::int64_t t, std::int64_t n_blocks, float* scores);

  runtime::Workers& workers_;
  const checkpoint::Qwen4ExpConfig& config_;
  const RotaryTable& rotary_;
  std::int64_t max_tokens_;
  Buffer q_and_gate_, q_, gate_, k_, v_, index_, context_, block_scores_;
  runtime::KvStaging staging_;
  std::vector<AlignedFloats> scores_;  // one a worker
};

}  // namespace kalibri::model

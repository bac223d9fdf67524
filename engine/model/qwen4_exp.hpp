// The text model of qwen4_exp: the forward pass of one sequence, a chunk of tokens through one layer at a time
// (transformers, modeling_qwen4_exp.py). It reads as the formula; the blocks are files of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/delta_net.hpp"
#include "engine/model/experts.hpp"
#include "engine/model/gated_residual.hpp"
#include "engine/model/ngram_layer.hpp"
#include "engine/model/qwen4_exp_weights.hpp"
#include "engine/model/rotary.hpp"
#include "engine/model/sparse_attention.hpp"
#include "engine/model/tap_writer.hpp"

namespace kalibri::model {

class Qwen4ExpSequence {
 public:
  /// weights and workers must outlive this.
  Qwen4ExpSequence(const Qwen4ExpWeights& weights, runtime::Workers& workers, std::int64_t max_tokens);

  /// residual [n, C H] <- embedding rows, unscaled, repeated for each stream.
  void embed(std::span<const std::int32_t> ids, float* residual) const;

  /// One layer over the next n tokens of that layer, in place: residual [n, C H].
  void run_layer(std::int64_t layer, std::span<const std::int32_t> ids, float* residual, runtime::TapSink* taps);

  /// final_norm [n, H] <- the final mixer's output; logits [n, V] when not null.
  void head(const float* residual, std::int64_t n, float* final_norm, float* logits);

  /// Places of the tokens from the start on, where they are not the tokens' own numbers (images). Tokens beyond them
  /// are text that goes on with (index + delta) on each axis.
  void set_positions(std::vector<AxisPositions> positions, std::int64_t delta);
  void force(const runtime::ForcedChoices* choices) { choices_ = choices; }

  /// Everything that the tokens so far have left behind. Copyable; restoring a copy gives the same bits as having
  /// stopped there.
  struct LayerState {
    std::int64_t position = 0;
    std::optional<NgramState> ngram;
    std::optional<DeltaNetState> delta_net;
    std::optional<SparseAttentionState> sparse_attention;
  };
  using State = std::vector<LayerState>;
  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  void mix_experts(const Qwen4ExpLayer& layer, std::int64_t index, const float* u, float* out, const TapWriter& taps);
  void extend_positions(std::int64_t n_tokens);

  const Qwen4ExpWeights& weights_;
  runtime::Workers& workers_;
  RotaryTable rotary_;
  GatedResidual connection_;
  NgramLayer ngram_;
  DeltaNet delta_net_;
  SparseAttention sparse_attention_;
  State state_;
  std::vector<AxisPositions> positions_;
  std::int64_t position_delta_ = 0;
  const runtime::ForcedChoices* choices_ = nullptr;

  Buffer mixed_, inject_, block_, shared_, shared_gate_, router_logits_, weights_of_experts_;
  std::vector<std::int32_t> expert_ids_;
  ExpertBuffers expert_buffers_;
};

}  // namespace kalibri::model

// Kolibri 1: the forward pass of one sequence, a chunk of tokens through one layer at a time (the plugin
// aleph-alpha-inference 1.0.0, kolibri1.py). It reads as the formula; kernels, threads and weights' formats are below
// it.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "engine/base/aligned.hpp"
#include "engine/model/experts.hpp"
#include "engine/model/kolibri1_weights.hpp"
#include "engine/model/rotary.hpp"
#include "engine/model/tap_writer.hpp"
#include "engine/runtime/choices.hpp"
#include "engine/runtime/kv_cache.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

/// Query heads that a thread computes together, because they share keys: so few that one token has tasks for many
/// threads.
inline std::int64_t heads_together(const checkpoint::Kolibri1Config& config) {
  return std::gcd(config.num_attention_heads / config.num_key_value_heads, std::int64_t{4});
}

class Kolibri1Sequence {
 public:
  /// weights and workers must outlive this.
  Kolibri1Sequence(const Kolibri1Weights& weights, runtime::Workers& workers, std::int64_t max_tokens);

  /// residual [n, H] <- embedding rows, unscaled.
  void embed(std::span<const std::int32_t> ids, float* residual) const;

  /// One layer over the next n tokens of that layer, in place: residual [n, H].
  void run_layer(std::int64_t layer, std::span<const std::int32_t> ids, float* residual, runtime::TapSink* taps);

  /// final_norm [n, H]; logits [n, V] when not null.
  void head(const float* residual, std::int64_t n, float* final_norm, float* logits) const;

  [[nodiscard]] std::int64_t layer_position(std::int64_t layer) const {
    return caches_[static_cast<std::size_t>(layer)].position();
  }
  [[nodiscard]] std::vector<runtime::KvCache>& caches() { return caches_; }

  /// Everything that the tokens so far have left behind. Copyable; restoring a copy gives the same bits.
  using State = std::vector<runtime::KvCache>;
  [[nodiscard]] const State& state() const { return caches_; }
  void restore(const State& state) { caches_ = state; }
  void force(const runtime::ForcedChoices* choices) { choices_ = choices; }

 private:
  /// residual += RMS(attention(RMS(residual; input_layernorm)); post_attn_norm)
  void attention(const Kolibri1Layer& layer, std::int64_t index, float* residual, const TapWriter& taps);
  /// residual += RMS(experts(RMS(residual; post_attention_layernorm)); post_ffn_norm)
  void experts(const Kolibri1Layer& layer, std::int64_t index, float* residual, const TapWriter& taps);

  void rms_norm_rows(const float* x, const std::vector<float>& weight, std::int64_t n, float* y) const;
  void norm_and_rotate(float* heads, std::int64_t n_heads, const std::vector<float>& weight, bool rotates,
                       std::int64_t first_pos, std::int64_t n) const;
  void add_branch(float* residual, const float* branch, const std::vector<float>& norm, bool norms_branch,
                  std::int64_t n) const;

  const Kolibri1Weights& weights_;
  runtime::Workers& workers_;
  float eps_;
  std::vector<runtime::KvCache> caches_;  // one a layer
  runtime::KvStaging staging_;
  RotaryTable rotary_;
  std::vector<AlignedFloats> scores_;  // one a worker
  const runtime::ForcedChoices* choices_ = nullptr;

  Buffer normed_, q_, k_, v_, context_, branch_, shared_, router_logits_, weights_of_experts_;
  std::vector<std::int32_t> expert_ids_;
  ExpertBuffers expert_buffers_;
};

}  // namespace kalibri::model

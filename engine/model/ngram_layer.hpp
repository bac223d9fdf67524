// The n-gram embedding layer (PLE): rows of a large table, chosen by the last few token ids, are gated by the streams,
// mixed over time by a short convolution, and added to the streams. Source: transformers,
// modeling_qwen4_exp.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/buffers.hpp"
#include "engine/model/history.hpp"
#include "engine/model/qwen4_exp_weights.hpp"
#include "engine/model/tap_writer.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

/// What one layer carries from token to token. Copyable: a copy is a snapshot.
struct NgramState {
  explicit NgramState(const checkpoint::Qwen4ExpConfig& config);
  std::vector<std::int32_t> ids;  // the last ngram_size - 1, oldest first; EOS where the sequence has not begun
  RowHistory conv;                // [(K - 1) * dilation, C H], normed gated values
};

class NgramLayer {
 public:
  /// workers and config must outlive this.
  NgramLayer(runtime::Workers& workers, const checkpoint::Qwen4ExpConfig& config)
      : workers_(workers), config_(config) {}

  /// Adds the layer's output to residual [n, C H], for tokens `ids` [n] after those in `state`.
  template <typename Form>
  void run(const NgramWeights& weights, const Form& form, NgramState& state, std::span<const std::int32_t> ids,
           float* residual, const TapWriter& taps) {
    look_up(weights, state, ids, taps);
    linear(workers_, form(weights.key_proj), embedding_.floats(0), taps.n_rows,
           keys_.floats(taps.n_rows * config_.residual_size()));
    linear(workers_, form(weights.value_proj), embedding_.floats(0), taps.n_rows,
           values_.floats(taps.n_rows * config_.hidden_size));
    gate(weights, residual, taps.n_rows);
    convolve(weights, state, residual, taps);
  }

 private:
  /// embedding_ [n, ple_embed_dim]: the table's rows, heads side by side.
  void look_up(const NgramWeights& weights, NgramState& state, std::span<const std::int32_t> ids,
               const TapWriter& taps);
  /// gated_ [n, C H]: sigmoid(signed root of (key . query) / sqrt(H)) * value for each stream; normed_ its RMS1.
  void gate(const NgramWeights& weights, const float* residual, std::int64_t n);
  void convolve(const NgramWeights& weights, NgramState& state, float* residual, const TapWriter& taps);

  runtime::Workers& workers_;
  const checkpoint::Qwen4ExpConfig& config_;
  Buffer embedding_, keys_, values_, gated_, normed_, joined_;
};

}  // namespace kalibri::model

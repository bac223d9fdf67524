// Gated DeltaNet: linear attention with a matrix state a head, corrected by the delta rule. The engine runs the
// recurrence as it is defined; a chunked solve would change bits. Source: transformers, modeling_qwen4_exp.py.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/aligned.hpp"
#include "engine/model/buffers.hpp"
#include "engine/model/history.hpp"
#include "engine/model/qwen4_exp_weights.hpp"
#include "engine/model/tap_writer.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

/// What one layer carries from token to token. Copyable: a copy is a snapshot.
struct DeltaNetState {
  explicit DeltaNetState(const checkpoint::Qwen4ExpConfig& config);
  AlignedFloats memory;  // [value heads, dk, dv], starts at 0
  RowHistory conv;       // [K - 1, 2 Kd + Vd], before the convolution
};

class DeltaNet {
 public:
  /// workers and config must outlive this.
  DeltaNet(runtime::Workers& workers, const checkpoint::Qwen4ExpConfig& config) : workers_(workers), config_(config) {}

  /// out [n, H] <- the mixer's output for u [n, H], tokens after those in `state`.
  template <typename Form>
  void run(const DeltaNetWeights& weights, const Form& form, DeltaNetState& state, const float* u, float* out,
           const TapWriter& taps) {
    project(form(weights.in_proj_qkv), form(weights.in_proj_z), form(weights.in_proj_b), form(weights.in_proj_a), u,
            taps.n_rows);
    mix(weights, state, taps);
    linear(workers_, form(weights.out_proj), core_.floats(0), taps.n_rows, out);
  }

 private:
  void project(const kernels::MatrixView& qkv, const kernels::MatrixView& z, const kernels::MatrixView& b,
               const kernels::MatrixView& a, const float* u, std::int64_t n);
  /// Convolution, heads' norms, delta rule, output norm and gate: core_ [n, Vd].
  void mix(const DeltaNetWeights& weights, DeltaNetState& state, const TapWriter& taps);
  void normalise_heads(float* mixed, std::int64_t n) const;
  void decays(const DeltaNetWeights& weights, std::int64_t n);

  runtime::Workers& workers_;
  const checkpoint::Qwen4ExpConfig& config_;
  Buffer qkv_, joined_, mixed_, z_, alpha_, beta_, core_;  // alpha_, beta_ [n, value heads]
};

}  // namespace kalibri::model

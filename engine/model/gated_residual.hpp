// The gated residual of qwen4_exp: C streams are read out into one vector for a block, and the block's output is
// injected back into each stream. Source: transformers, modeling_qwen4_exp.py.
#pragma once

#include <cstdint>

#include "engine/model/buffers.hpp"
#include "engine/model/qwen4_exp_weights.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

class GatedResidual {
 public:
  /// workers must outlive this.
  GatedResidual(runtime::Workers& workers, const checkpoint::Qwen4ExpConfig& config);

  /// n_s = RMS1(x_s) for each stream; m = sigmoid(silu((n down^T) / C) up^T); mixed = (1/C) sum_s m_s * n_s, streams
  /// ascending; inject = 2 sigmoid((n inject^T) / C), when the connection has one and `inject` is not null. residual
  /// [n, C H] -> mixed [n, H], inject [n, C]. `form` gives a matrix in the precision's form.
  template <typename Form>
  void read_out(const GatedResidualWeights& weights, const Form& form, const float* residual, std::int64_t n,
                float* mixed, float* inject) {
    read_out(weights.norm.data(), form(weights.down), form(weights.up),
             weights.inject.has_value() ? form(*weights.inject) : kernels::MatrixView{}, residual, n, mixed, inject);
  }

  /// x_s += inject[s] * block for each stream s: the raw streams, not the normed ones. block [n, H].
  void add(float* residual, const float* block, const float* inject, std::int64_t n);

 private:
  void read_out(const float* norm, const kernels::MatrixView& down, const kernels::MatrixView& up,
                const kernels::MatrixView& inject_matrix, const float* residual, std::int64_t n, float* mixed,
                float* inject);

  runtime::Workers& workers_;
  std::int64_t hidden_size_;
  std::int64_t n_streams_;
  std::int64_t rank_;
  float eps_;
  Buffer normed_, low_, gates_;
};

}  // namespace kalibri::model

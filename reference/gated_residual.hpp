// The gated residual (hyper-connection): how a block reads the streams and how its output returns to them.
// Source: transformers, modeling_qwen4_exp.py, gated residual.
#pragma once

#include "reference/qwen4_exp_tensors.hpp"
#include "reference/rounding.hpp"

namespace kalibri::reference {

struct GatedResidual {
  StoredMatrix hc_norm;                // [C * H]
  StoredMatrix input_mix_weight_down;  // [rank, C * H]
  StoredMatrix input_mix_weight_up;    // [C * H, rank]
  StoredMatrix block_inject_weight;    // [C, C * H]; none for the final read-out
  std::int64_t n_streams = 0;          // C
  double eps = 0;
};

GatedResidual find_gated_residual(const Qwen4ExpTensors& tensors, bool injects);

struct Mixed {
  at::Tensor u;  // [T, H]: what the block reads
  at::Tensor g;  // [T, C]: weights that inject its output; undefined for the final read-out
};

/// streams [T, C * H], stream-major.
Mixed mix(const Rounding& r, const GatedResidual& gated, const at::Tensor& streams);

/// streams + g_s * out for every stream s: out [T, H], g [T, C] -> [T, C * H].
at::Tensor inject(const Rounding& r, const at::Tensor& streams, const at::Tensor& g, const at::Tensor& out);

/// RMS norm with weight 1 + w of each of n_streams slices by itself: x [T, C * H], w [C * H] -> [T, C, H].
at::Tensor norm_streams(const Rounding& r, const at::Tensor& x, const StoredMatrix& w, std::int64_t n_streams,
                        double eps);

/// RMS norm over the last axis with weight 1 + w.
at::Tensor norm_plus_one(const Rounding& r, const at::Tensor& x, const StoredMatrix& w, double eps);

}  // namespace kalibri::reference

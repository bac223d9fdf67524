// The operations whose gradients are written by hand, because as chains of LibTorch's they would be slow: norms, routed
// experts, the delta rule. Each works in f32 and f64 and gives the same bits on any number of threads.
#pragma once

#include <ATen/ATen.h>

namespace kalibri::reference::training {

/// x / sqrt(mean x^2 + eps) * g over the last axis [n]. g [groups * n]: row r of x uses group r mod groups.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& g, double eps);

/// The sum over chosen experts of weight * down(silu(gate x) * (up x)). x [N, H], ids [N, k] int64 and weights [N, k],
/// gate_up [E, 2 I, H] (gate's rows first), down [E, H, I] -> [N, H].
at::Tensor routed_experts(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights,
                          const at::Tensor& gate_up, const at::Tensor& down);

/// The gated delta rule from an empty state, token by token: S = alpha S; u = beta (v - k S); S += k (x) u; o = q S.
/// q, k [B, T, heads, dk], v [B, T, heads, dv], alpha and beta [B, T, heads] -> o [B, T, heads, dv]. alpha 0 forgets
/// everything. Source: Yang et al., Gated Delta Networks (2024).
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& alpha,
                      const at::Tensor& beta);

}  // namespace kalibri::reference::training

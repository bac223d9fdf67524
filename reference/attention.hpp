// Rotary embedding and causal attention over one prompt; no cache, no weights, no family.
#pragma once

#include <cstdint>

#include "reference/tensor.hpp"

namespace kalibri::reference {

struct Rotation {
  at::Tensor cos;  // [T, 1, D/2]
  at::Tensor sin;
};

/// Angles of positions 0 to T-1: pos * base^(-2i/D), i < D/2. The frequencies are computed in f64; with dtype f32 they
/// are rounded once and all that follows is f32. Source: Su et al., RoFormer (2021), equation 34; halves paired
/// as transformers' rotate_half does.
Rotation rotation(std::int64_t n_tokens, std::int64_t head_dim, double base, at::ScalarType dtype);

/// x [T, heads, D], component i paired with i + D/2: x'_i = x_i cos - x_(i+D/2) sin, x'_(i+D/2) = x_(i+D/2) cos + x_i
/// sin.
at::Tensor rotate(const at::Tensor& x, const Rotation& rotation);

/// Rotates the first 2 * (rotation's pairs) components and passes the others.
at::Tensor rotate_first(const at::Tensor& x, const Rotation& rotation);

/// softmax(q k / sqrt(D)) v with key j visible to query i iff j <= i, and, where window > 0, i - j <= window - 1.
/// q [T, n_heads, D], k and v [T, n_kv_heads, D] -> [T, n_heads * D]; query head h reads KV head floor(h * n_kv_heads /
/// n_heads). Queries are taken in blocks: scores need memory for one block. Source: Kolibri 1 in
/// vLLM, attention; Vaswani et al. (2017), equation 1.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t window);

}  // namespace kalibri::reference

#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kalibri::reference {
namespace {

constexpr std::int64_t kMaxQueries = 128;                   // of a block
constexpr std::int64_t kMaxScores = std::int64_t{1} << 24;  // of a block

/// Queries [begin, end) of causal_attention: [end - begin, n_heads * D].
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t window,
                  std::int64_t begin, std::int64_t end) {
  const std::int64_t n_kv_heads = k.size(1);
  const std::int64_t n_repeats = q.size(1) / n_kv_heads;  // query heads that read one KV head
  const std::int64_t head_dim = q.size(2);
  const std::int64_t n_queries = end - begin;
  const std::int64_t first_key = window > 0 ? std::max<std::int64_t>(0, begin - window + 1) : 0;
  const std::int64_t n_keys = end - first_key;

  const at::Tensor queries = q.slice(0, begin, end)
                                 .reshape({n_queries, n_kv_heads, n_repeats, head_dim})
                                 .permute({1, 2, 0, 3})
                                 .reshape({n_kv_heads, n_repeats * n_queries, head_dim});
  const at::Tensor keys = k.slice(0, first_key, end).permute({1, 2, 0});
  const at::Tensor values = v.slice(0, first_key, end).permute({1, 0, 2});

  const at::Tensor i = at::arange(begin, end, at::kLong).unsqueeze(1);
  const at::Tensor j = at::arange(first_key, end, at::kLong).unsqueeze(0);
  at::Tensor masked = j > i;
  if (window > 0) masked = masked.logical_or(i - j > window - 1);

  at::Tensor scores = at::bmm(queries, keys) / std::sqrt(static_cast<double>(head_dim));
  scores = scores.view({n_kv_heads, n_repeats, n_queries, n_keys});
  scores.masked_fill_(masked, -std::numeric_limits<double>::infinity());
  const at::Tensor p = at::softmax(scores, -1).view({n_kv_heads, n_repeats * n_queries, n_keys});
  return at::bmm(p, values)
      .view({n_kv_heads, n_repeats, n_queries, head_dim})
      .permute({2, 0, 1, 3})
      .reshape({n_queries, n_kv_heads * n_repeats * head_dim});
}

}  // namespace

Rotation rotation(std::int64_t n_tokens, std::int64_t head_dim, double base, at::ScalarType dtype) {
  const at::Tensor exponent = at::arange(0, head_dim / 2, at::kDouble) * (-2.0 / static_cast<double>(head_dim));
  const at::Tensor theta = at::pow(at::scalar_tensor(base, at::kDouble), exponent).to(dtype);
  const at::Tensor phi = at::arange(0, n_tokens, at::kLong).to(dtype).unsqueeze(1) * theta;  // [T, D/2]
  return {at::cos(phi).unsqueeze(1), at::sin(phi).unsqueeze(1)};
}

at::Tensor rotate(const at::Tensor& x, const Rotation& rotation) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half);
  const at::Tensor b = x.narrow(-1, half, half);
  return at::cat({a * rotation.cos - b * rotation.sin, b * rotation.cos + a * rotation.sin}, -1);
}

at::Tensor rotate_first(const at::Tensor& x, const Rotation& rotation) {
  const std::int64_t width = 2 * rotation.cos.size(-1);
  return at::cat({rotate(x.narrow(-1, 0, width), rotation), x.narrow(-1, width, x.size(-1) - width)}, -1);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t window) {
  const std::int64_t n_tokens = q.size(0);
  const std::int64_t n_keys_max = window > 0 ? std::min(n_tokens, window + kMaxQueries) : n_tokens;
  const std::int64_t block = std::clamp<std::int64_t>(kMaxScores / (q.size(1) * n_keys_max), 1, kMaxQueries);
  at::Tensor context = at::empty({n_tokens, q.size(1) * q.size(2)}, q.scalar_type());
  for (std::int64_t begin = 0; begin < n_tokens; begin += block) {
    const std::int64_t end = std::min(begin + block, n_tokens);
    context.slice(0, begin, end).copy_(attend(q, k, v, window, begin, end));
  }
  return context;
}

}  // namespace kalibri::reference

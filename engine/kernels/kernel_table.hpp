// The engine's arithmetic as one table of functions an instruction set. Each entry is defined by its scalar version
// (kernels_scalar.cpp reads as the definition); the SIMD versions give the same bits, except that of a NaN only its
// being NaN is promised. Nothing here knows threads, models or files: a caller splits rows, heads and tokens among
// threads, no kernel splits a sum.
//
// Order of summation, for every dot product and sum of squares over n elements ("dot32"): the operands are padded with
// +0 to a multiple of 32; 32 running sums start at +0; element j goes to sum j mod 32 by fma(w, x, sum) in rising j;
// then s[i] += s[i + h] for h = 16, 8, 4, 2, 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/matrix_view.hpp"

namespace kalibri::kernels {

/// `pack` may be shared among threads by ranges of tokens that begin at a multiple of this.
inline constexpr std::int64_t kTokenTile = 4;

/// Activations of a product where they lie: [n_tokens, n_cols], x[t, j] at data[t * stride + j].
struct Activations {
  const float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t n_tokens = 0;
  std::int64_t n_cols = 0;
};

/// Cached keys and values of consecutive positions: row i at keys + i * row_stride floats.
struct KeyRun {
  const float* keys = nullptr;
  const float* values = nullptr;
  std::int64_t n_rows = 0;
};

/// Query heads of one token against the keys that they all see, oldest first: runs of rising position (one, two for a
/// ring that has wrapped, many for sparse attention).
struct AttentionHeads {
  std::int64_t n_heads = 1;
  const float* queries = nullptr;  // [n_heads, head_dim]
  const KeyRun* runs = nullptr;
  std::int64_t n_runs = 0;
  std::int64_t row_stride = 0;  // floats from one cached row to the next, for keys and values
  std::int64_t head_dim = 0;
  float scale = 1.0F;       // score = dot32(query, key) * scale
  float* scores = nullptr;  // scratch [n_heads, n_keys]
  float* out = nullptr;     // [n_heads, head_dim]; may not alias anything
};

/// Columns [0, n_columns) of one head's delta-rule state, over n_tokens tokens. Token t's q, k [dk] and v [n_columns]
/// lie at q + t * qkv_stride and so on; alpha and beta at [t * gate_stride]; state row i at state + i * state_stride.
struct DeltaTile {
  std::int64_t n_tokens = 0;
  std::int64_t dk = 0;
  std::int64_t n_columns = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t qkv_stride = 0;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  std::int64_t gate_stride = 0;
  float* state = nullptr;
  std::int64_t state_stride = 0;
  float* out = nullptr;  // [n_columns] at out + t * out_stride
  std::int64_t out_stride = 0;
};

/// The longest convolution: taps of conv and conv_silu.
inline constexpr std::int64_t kMaxConvTaps = 16;

/// Pointers need no alignment beyond their type's (MatrixView::data none at all); 64 bytes are fastest.
struct KernelTable {
  const char* isa;

  /// Floats that hold [n_tokens, n_cols] activations as `pack` lays them out.
  std::size_t (*packed_size)(std::int64_t n_tokens, std::int64_t n_cols);

  /// Lays x out for this table's `matmul`, whatever the weights' format: tokens [token_begin, token_end), where
  /// token_begin is a multiple of kTokenTile and token_end another or n_tokens. Threads may share the ranges.
  void (*pack)(const Activations& x, std::int64_t token_begin, std::int64_t token_end, float* packed);

  /// Floats of scratch that each concurrent `matmul` of this product needs (0 is possible).
  std::size_t (*matmul_scratch)(const MatrixView& w, std::int64_t n_tokens);

  /// y[t, r] = sum_j W[r, j] x[t, j] for row_begin <= r < row_end and all tokens t, at y[t * y_stride + r].
  /// packed: x [n_tokens, w.n_cols] by `pack` of this table. f32 and bf16: dot32 of the exact weight; affine: dot32 of
  /// fma(code, scale, bias). e4m3_block:
  /// x'_j = fl(x_j * fl(scale_inv * 2^-22)) with the scale of the weight's block, w'_j = code * 2^-8 (exact), then
  /// dot32(w', x') * 2^30; |x_j * scale_inv| < 2^38. (These powers of two leave room for a table to move others
  /// between the operands, and keep subnormal operands, which many processors are slow at, out of ordinary products.)
  /// The same bits for any n_tokens, split of rows, alignment. scratch may not alias anything.
  void (*matmul)(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
                 std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch);

  /// Affine weights times activations that are rounded to integers. Bytes that hold the activations of n_tokens tokens.
  std::size_t (*packed_integers_size)(const MatrixView& w, std::int64_t n_tokens);

  /// For each token and group of w's columns: a = fl(max |x_j| / max_code) and, for columns j, q_j = fl(x_j / a)
  /// clamped to [-max_code, max_code] and rounded to nearest even; all 0 where a is 0; a is NaN, and hence the product,
  /// where an x_j is not finite. Of w only shape, bits and group_size matter. max_code is 127 or 32767. Threads may
  /// share the tokens [token_begin, token_end) as they like.
  void (*pack_integers)(const MatrixView& w, const Activations& x, std::int32_t max_code, std::int64_t token_begin,
                        std::int64_t token_end, unsigned char* packed);

  /// y as `matmul` has it. Of group g with I = sum_j code_j q_j and S = sum_j q_j, both exact: sum g mod 32 is first
  /// fma(float(I), fl(scale * a), sum), then fma(bias, fl(float(S) * a), sum), for rising g from +0; then the tree.
  void (*matmul_integers)(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end,
                          const unsigned char* packed, std::int64_t n_tokens, float* y, std::int64_t y_stride);

  /// dot32 of two f32 vectors.
  float (*dot)(const float* a, const float* b, std::int64_t n);

  /// y_i = (x_i * r) * weight_i with r = 1 / sqrt(fl(dot32(x, x) / n) + eps); no weight (null) is ones. y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* y);

  /// Rotates pairs (i, i + half), 0 <= i < half, in place: a' = fma(a, cos, -(b * sin)), b' = fma(b, cos, a * sin).
  void (*rope)(float* x, const float* cos, const float* sin, std::int64_t half);

  /// y_i = silu(gate_i) * up_i, silu(z) = z * sigmoid(z). y may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* y);

  /// y_i = sigmoid(x_i) = 1 / (1 + exp(-x_i)). y may be x.
  void (*sigmoid)(const float* x, std::int64_t n, float* y);

  /// y_i = y_i + x_i.
  void (*add)(const float* x, std::int64_t n, float* y);

  /// y_i = fma(a, x_i, y_i).
  void (*axpy)(float a, const float* x, std::int64_t n, float* y);

  /// y_i = x_i * sigmoid(x_i). y may be x.
  void (*silu)(const float* x, std::int64_t n, float* y);

  /// y_i = a * x_i. y may be x.
  void (*scale)(float a, const float* x, std::int64_t n, float* y);

  /// y_i = y_i * x_i.
  void (*multiply)(const float* x, std::int64_t n, float* y);

  /// y_i = fma(a_i, b_i, y_i).
  void (*multiply_add)(const float* a, const float* b, std::int64_t n, float* y);

  /// y_i = running sum over taps j, rising from +0, of fma(weights[j, i], rows[j][i], sum); weights [n_taps, n]. y may
  /// not be one of the rows. n_taps <= kMaxConvTaps.
  void (*conv)(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n, float* y);

  /// silu of conv.
  void (*conv_silu)(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n, float* y);

  /// The gated delta rule, token by token, for each column c of the tile: for i rising from 0: S_i = alpha * S_i and
  /// p = fma(k_i, S_i, p) from +0; then d = beta * (v_c - p); for i rising: S_i = fma(k_i, d, S_i) and
  /// o = fma(q_i, S_i, o) from +0; out_c = o. Source: Yang et al., Gated Delta Networks (2024).
  void (*delta_rule)(const DeltaTile& tile);

  /// softmax(q K^T * scale) V for each head: maximum first; then p_i = exp(score_i - max); the denominator is 32 sums,
  /// p_i goes to sum i mod 32, combined by the tree; out_d = (running sum over keys, oldest first, of fma(p_i, v_id,
  /// sum)) / denominator. At least one key. (Of consecutive keys it makes no difference to count i from the oldest one
  /// or to take absolute positions: the tree is the same when its 32 sums are rotated.)
  void (*attention)(const AttentionHeads& heads);
};

}  // namespace kalibri::kernels

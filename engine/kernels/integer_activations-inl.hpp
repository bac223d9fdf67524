// Products of affine weights with activations rounded to integers, a scale for each group: within a group the product
// is exact, so that its order is free; between groups it is 32 sums and the tree, as everywhere. The same bits for one
// token and for many.
#pragma once

#include "engine/kernels/integer_stream-inl.hpp"
#include "engine/kernels/integer_tile-inl.hpp"

namespace kalibri::kernels {
namespace {

std::size_t packed_integers_size(const MatrixView& w, std::int64_t n_tokens) {
  const PackedIntegers layout(w, n_tokens);
  return static_cast<std::size_t>(round_up(n_tokens, layout.width) / layout.width * layout.tile_bytes);
}

/// One group of x as integers in order; returns a and fl(float(S) * a).
KALIBRI_INLINE void round_group(const float* x, std::int64_t group_size, float max_code, std::int16_t* codes, float* a,
                                float* sum) {
  Vector largest = zero();
  Vector poison = zero();  // NaN where an activation is infinite or NaN
  for (std::int64_t i = 0; i < group_size; i += kWidth) {
    const Vector v = load(x + i);
    largest = max(largest, max(v, negate(v)));
    poison = add(poison, sub(v, v));
  }
  float lanes[2 * kWidth];
  store(lanes, largest);
  store(lanes + kWidth, poison);
  float most = 0;
  float defect = 0;
  for (int i = 0; i < kWidth; ++i) {
    most = lanes[i] > most ? lanes[i] : most;
    defect += lanes[kWidth + i];
  }
  *a = most / max_code + defect;
  const bool is_zero = !(*a > 0);
  constexpr float kToInteger = 0x1.8p23F;  // adding it rounds to nearest even
  const Vector divisor = splat(is_zero ? 1.0F : *a);
  float total = 0;  // of integers below 2^24: exact in any order
  for (std::int64_t i = 0; i < group_size; i += kLanes) {
    float rounded[kLanes];
    KALIBRI_UNROLL for (int k = 0; k < kLanes; k += kWidth) {
      Vector v = is_zero ? zero() : div(load(x + i + k), divisor);
      v = where_less(splat(max_code), v, splat(max_code), where_less(v, splat(-max_code), splat(-max_code), v));
      store(rounded + k, sub(add(v, splat(kToInteger)), splat(kToInteger)));
    }
    for (int k = 0; k < kLanes; ++k) {
      codes[i + k] = static_cast<std::int16_t>(rounded[k]);
      total += rounded[k];
    }
  }
  *sum = total * *a;
}

/// Puts one group of a token where the layout has it; `token` is the token's place in the first group.
KALIBRI_INLINE void put_group(const MatrixView& w, const PackedIntegers& layout, std::int64_t group,
                              const std::int16_t* codes, float a, float sum, unsigned char* token) {
  const std::int64_t stride = layout.width * 4;
  __builtin_memcpy(token + group * stride, &a, 4);
  __builtin_memcpy(token + layout.sums_at + group * stride, &sum, 4);
  unsigned char* to = token + layout.pairs_at + group * w.group_size / 2 * stride;
  const std::int64_t word_bits = w.bits == 2 || w.bits == 4 ? w.bits : 8;
  const std::int64_t n_pairs = 16 / word_bits;  // of a word
  const std::int64_t n_words = w.group_size / (2 * n_pairs);
  const std::int64_t together = layout.width == 1 ? min(n_words, kStreamedWords) : 1;
  for (std::int64_t first = 0; first < n_words; first += together) {
    for (std::int64_t k = 0; k < n_pairs; ++k) {
      for (std::int64_t word = first; word < first + together; ++word, to += stride) {
        const std::int16_t* pair = codes + word * 2 * n_pairs + k;
        const std::int16_t both[2] = {pair[0], pair[n_pairs]};
        __builtin_memcpy(to, both, 4);
      }
    }
  }
}

/// Groups that are not there leave a sum as it is, also -0, if their codes, scales and biases are +0.
KALIBRI_INLINE void put_absent_groups(const PackedIntegers& layout, unsigned char* token) {
  constexpr float kNothing = -0.0F;
  for (std::int64_t at = layout.n_groups * layout.width * 4; at < layout.sums_at; at += layout.width * 4) {
    __builtin_memcpy(token + at, &kNothing, 4);
    __builtin_memcpy(token + layout.sums_at + at, &kNothing, 4);
  }
}

void pack_integers(const MatrixView& w, const Activations& x, std::int32_t max_code, std::int64_t token_begin,
                   std::int64_t token_end, unsigned char* packed) {
  const PackedIntegers layout(w, x.n_tokens);
  std::int16_t codes[128] = {};
  for (std::int64_t t = token_begin; t < token_end; ++t) {
    unsigned char* token = layout.token(packed, t);
    for (std::int64_t g = 0; g < layout.n_groups; ++g) {
      const float* group = x.data + t * x.stride + g * w.group_size;
      float a = 0;
      float sum = 0;
      round_group(group, w.group_size, static_cast<float>(max_code), codes, &a, &sum);
      put_group(w, layout, g, codes, a, sum, token);
    }
    put_absent_groups(layout, token);
  }
  if (token_end < x.n_tokens) return;
  __builtin_memset(codes, 0, sizeof codes);
  for (std::int64_t t = x.n_tokens; t < round_up(x.n_tokens, layout.width); ++t) {  // so that nothing stale is read
    for (std::int64_t g = 0; g < layout.n_groups; ++g) put_group(w, layout, g, codes, 0, 0, layout.token(packed, t));
  }
}

template <int kBits, std::int64_t kGroupColumns>
void matmul_integer_groups(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                           std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  if (n_tokens <= kStreamedTokens) {
    return stream_integers<kBits, kGroupColumns>(w, begin, end, packed, n_tokens, y, y_stride);
  }
  multiply_integer_tiles<kBits>(w, begin, end, packed, n_tokens, y, y_stride);
}

template <int kBits>
void matmul_integers_as(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                        std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  if (begin == end) return;
  switch (w.group_size) {
    case 32:
      return matmul_integer_groups<kBits, 32>(w, begin, end, packed, n_tokens, y, y_stride);
    case 64:
      return matmul_integer_groups<kBits, 64>(w, begin, end, packed, n_tokens, y, y_stride);
    default:
      return matmul_integer_groups<kBits, 128>(w, begin, end, packed, n_tokens, y, y_stride);
  }
}

void matmul_integers(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const unsigned char* packed,
                     std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  switch (w.bits) {
    case 2:
      return matmul_integers_as<2>(w, row_begin, row_end, packed, n_tokens, y, y_stride);
    case 3:
      return matmul_integers_as<3>(w, row_begin, row_end, packed, n_tokens, y, y_stride);
    case 4:
      return matmul_integers_as<4>(w, row_begin, row_end, packed, n_tokens, y, y_stride);
    case 5:
      return matmul_integers_as<5>(w, row_begin, row_end, packed, n_tokens, y, y_stride);
    case 6:
      return matmul_integers_as<6>(w, row_begin, row_end, packed, n_tokens, y, y_stride);
    default:
      return matmul_integers_as<8>(w, row_begin, row_end, packed, n_tokens, y, y_stride);
  }
}

}  // namespace
}  // namespace kalibri::kernels

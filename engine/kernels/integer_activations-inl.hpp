// Products of affine weights with activations rounded to integers, a scale for each group: within a group the product
// is exact, so that its order is free; between groups it is 32 sums and the tree, as everywhere. The same bits for one
// token and for many.
//
// A packed token: a [groups], fl(float(S) * a) [groups], both padded with zeros to whole lanes, then its codes as
// int16, each 32 columns in the order in which load_codes has the weights'.
#pragma once

#include "engine/kernels/weights-inl.hpp"

namespace kalibri::kernels {
namespace {

struct PackedIntegers {
  explicit PackedIntegers(const MatrixView& w)
      : n_groups(w.n_cols / w.group_size),
        grid_bytes(round_up(n_groups, kLanes) * 4),
        token_bytes(2 * grid_bytes + round_up(w.n_cols * 2, 64)) {}
  std::int64_t n_groups;
  std::int64_t grid_bytes;
  std::int64_t token_bytes;

  [[nodiscard]] KALIBRI_INLINE std::int64_t codes(std::int64_t column) const { return 2 * grid_bytes + column * 2; }
};

std::size_t packed_integers_size(const MatrixView& w, std::int64_t n_tokens) {
  return static_cast<std::size_t>(n_tokens * PackedIntegers(w).token_bytes);
}

/// One group of x as codes in order; returns a and fl(float(S) * a).
KALIBRI_INLINE void pack_group(const float* x, std::int64_t group_size, float max_code, bool splits_parity,
                               std::int16_t* codes, float* a, float* sum) {
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
      const int column = splits_parity ? k % 16 * 2 + k / 16 : k;
      codes[i + k] = static_cast<std::int16_t>(rounded[column]);
      total += rounded[column];
    }
  }
  *sum = total * *a;
}

void pack_integers(const MatrixView& w, const Activations& x, std::int32_t max_code, std::int64_t token_begin,
                   std::int64_t token_end, unsigned char* packed) {
  const PackedIntegers layout(w);
  for (std::int64_t t = token_begin; t < token_end; ++t) {
    unsigned char* token = packed + t * layout.token_bytes;
    __builtin_memset(token, 0, static_cast<std::size_t>(2 * layout.grid_bytes));
    for (std::int64_t g = 0; g < layout.n_groups; ++g) {
      std::int16_t codes[128];
      float a = 0;
      float sum = 0;
      pack_group(x.data + t * x.stride + g * w.group_size, w.group_size, static_cast<float>(max_code), w.bits == 4,
                 codes, &a, &sum);
      __builtin_memcpy(token + g * 4, &a, 4);
      __builtin_memcpy(token + layout.grid_bytes + g * 4, &sum, 4);
      __builtin_memcpy(token + layout.codes(g * w.group_size), codes, static_cast<std::size_t>(w.group_size) * 2);
    }
  }
}

constexpr std::int64_t kCodeTokens = 16;  // that stand against a row's codes while these are in registers
constexpr std::int64_t kGroupsAtOnce = 8;

/// The exact integer products of up to 8 groups of a row with n_tokens <= kTokens tokens: group g's at totals[t][g].
template <int kBits, std::size_t kSteps, std::size_t kTokens>
KALIBRI_INLINE void multiply_groups(const unsigned char* row, std::size_t n_groups, const unsigned char* x,
                                    std::size_t token_bytes, std::size_t n_tokens, std::int32_t (*totals)[kLanes]) {
  constexpr std::size_t kStepBytes = kLanes * kBits / 8;
  constexpr std::size_t kStepCodes = kLanes * sizeof(std::int16_t);
  CodeSums sums[kTokens][kGroupsAtOnce];
  KALIBRI_UNROLL for (std::size_t g = 0; g < std::size_t{kGroupsAtOnce}; ++g) {
    if (g >= n_groups) {
      for (std::size_t t = 0; t < n_tokens; ++t) sums[t][g] = zero_code_sums();
      continue;
    }
    Codes weights[kSteps];
    KALIBRI_UNROLL for (std::size_t s = 0; s < kSteps; ++s) {
      weights[s] = load_codes<kBits>(row + (g * kSteps + s) * kStepBytes);
    }
    for (std::size_t t = 0; t < n_tokens; ++t) {
      CodeSums sum = zero_code_sums();
      KALIBRI_UNROLL for (std::size_t s = 0; s < kSteps; ++s) {
        sum = multiply_codes(weights[s], x + t * token_bytes + (g * kSteps + s) * kStepCodes, sum);
      }
      sums[t][g] = sum;
    }
  }
  for (std::size_t t = 0; t < n_tokens; ++t) store_totals(sums[t], totals[t]);
}

/// Scales or biases of 32 groups from `group` on; of those that are not there, zeros.
KALIBRI_INLINE Lanes load_grid(const void* grid, std::int64_t first, std::int64_t n, Format format) {
  const std::int64_t n_bytes = format == Format::f32 ? 4 : 2;
  const unsigned char* from = static_cast<const unsigned char*>(grid) + first * n_bytes;
  unsigned char padded[kLanes * 4] = {};
  if (n < kLanes) {
    __builtin_memcpy(padded, from, static_cast<std::size_t>(n * n_bytes));
    from = padded;
  }
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) {
    result.v[i] = format == Format::f32 ? load_f32(from + i * kWidth * 4) : load_bf16(from + i * kWidth * 2);
  }
  return result;
}

/// The 32 sums of row `row` with each token, sums[t]. Weights of the row `ahead` rows later are asked for.
template <int kBits, std::size_t kSteps, std::size_t kTokens>
struct IntegerRow {
  static constexpr std::int64_t kGroupBytes = kSteps * kLanes * kBits / 8;
  static constexpr std::int64_t kGroupColumns = kSteps * kLanes;
  static constexpr std::int64_t kAheadBytes = 1024;
  static constexpr std::int64_t kAheadRows = 4;

  const MatrixView& w;
  const PackedIntegers layout;
  const unsigned char* codes;
  std::int64_t first_group;

  KALIBRI_INLINE IntegerRow(const MatrixView& matrix, std::int64_t row)
      : w(matrix),
        layout(matrix),
        codes(static_cast<const unsigned char*>(matrix.data) + row * layout.n_groups * kGroupBytes),
        first_group(row * layout.n_groups) {}

  /// totals[t][k] of the groups [g, g + n), n <= 8.
  KALIBRI_INLINE void multiply(std::int64_t g, std::int64_t n, const unsigned char* packed, std::int64_t n_tokens,
                               std::int32_t (*totals)[kLanes]) const {
    const unsigned char* from = codes + g * kGroupBytes;
    for (std::int64_t line = 0; line < kGroupsAtOnce * kGroupBytes; line += 64) {
      __builtin_prefetch(from + kAheadBytes + line);
    }
    multiply_groups<kBits, kSteps, kTokens>(from, static_cast<std::size_t>(n), packed + layout.codes(g * kGroupColumns),
                                            static_cast<std::size_t>(layout.token_bytes),
                                            static_cast<std::size_t>(n_tokens), totals);
  }

  /// Adds what the groups [g, g + n), n <= 32, come to.
  KALIBRI_INLINE void add(std::int64_t g, std::int64_t n, const unsigned char* packed, std::int64_t n_tokens,
                          const std::int32_t (*totals)[kLanes], Lanes* sums) const {
    const Lanes scales = load_grid(w.scales, first_group + g, n, w.grid_format);
    const Lanes biases = load_grid(w.biases, first_group + g, n, w.grid_format);
    const std::int64_t ahead =
        (first_group + g + kAheadRows * layout.n_groups) * (w.grid_format == Format::f32 ? 4 : 2);
    __builtin_prefetch(static_cast<const unsigned char*>(w.scales) + ahead);
    __builtin_prefetch(static_cast<const unsigned char*>(w.biases) + ahead);
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      const unsigned char* grid = packed + t * layout.token_bytes + g * 4;
      KALIBRI_UNROLL for (int v = 0; v < kVectors; ++v) {
        const Vector a = load_f32(grid + v * kWidth * 4);
        const Vector sum = load_f32(grid + layout.grid_bytes + v * kWidth * 4);
        Vector& to = sums[t].v[v];
        to = fma(load_integers(totals[t] + v * kWidth), mul(scales.v[v], a), to);
        to = fma(biases.v[v], sum, to);
      }
    }
  }
};

/// The 32 sums of two rows with n_tokens tokens: two long streams read faster than one.
template <int kBits, std::size_t kSteps, std::size_t kTokens>
KALIBRI_INLINE void multiply_two_rows(const MatrixView& w, std::int64_t row_a, std::int64_t row_b,
                                      const unsigned char* packed, std::int64_t n_tokens, Lanes* sums_a,
                                      Lanes* sums_b) {
  const IntegerRow<kBits, kSteps, kTokens> a(w, row_a);
  const IntegerRow<kBits, kSteps, kTokens> b(w, row_b);
  for (std::int64_t t = 0; t < n_tokens; ++t) sums_a[t] = sums_b[t] = zero_lanes();
  for (std::int64_t g = 0; g < a.layout.n_groups; g += kLanes) {
    const std::int64_t n = min(kLanes, a.layout.n_groups - g);
    std::int32_t totals_a[kTokens][kLanes] = {};
    std::int32_t totals_b[kTokens][kLanes] = {};
    for (std::int64_t k = 0; k < n; k += kGroupsAtOnce) {
      a.multiply(g + k, n - k, packed, n_tokens, reinterpret_cast<std::int32_t(*)[kLanes]>(totals_a[0] + k));
      b.multiply(g + k, n - k, packed, n_tokens, reinterpret_cast<std::int32_t(*)[kLanes]>(totals_b[0] + k));
    }
    a.add(g, n, packed, n_tokens, totals_a, sums_a);
    b.add(g, n, packed, n_tokens, totals_b, sums_b);
  }
}

/// The trees of kWidth dot products.
KALIBRI_INLINE Vector trees(const Lanes* sums) {
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int i = 0; i < kWidth; ++i) folded[i] = fold(sums[i].v);
  return tree(folded);
}

/// Rows [begin, end) with one token, the first half and the second half side by side.
template <int kBits, std::size_t kSteps>
void multiply_one_integer_token(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                                float* y) {
  const std::int64_t half = (end - begin + 1) / 2;
  Lanes sums[2][kWidth];
  for (auto& row : sums) {
    for (Lanes& lanes : row) lanes = zero_lanes();
  }
  for (std::int64_t i = begin; i < begin + half; i += kWidth) {
    const std::int64_t n = min(kWidth, begin + half - i);
    for (std::int64_t k = 0; k < n; ++k) {
      multiply_two_rows<kBits, kSteps, 1>(w, i + k, min(i + k + half, end - 1), packed, 1, sums[0] + k, sums[1] + k);
    }
    store_up_to(y + i, trees(sums[0]), n);
    store_up_to(y + i + half, trees(sums[1]), min(n, end - (i + half)));
  }
}

/// The same with up to kCodeTokens tokens.
template <int kBits, std::size_t kSteps>
void multiply_integer_tokens(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                             std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  const std::int64_t half = (end - begin + 1) / 2;
  Lanes sums[2][kCodeTokens];
  for (auto& row : sums) {
    for (Lanes& lanes : row) lanes = zero_lanes();
  }
  for (std::int64_t i = begin; i < begin + half; ++i) {
    const std::int64_t rows[2] = {i, min(i + half, end - 1)};
    multiply_two_rows<kBits, kSteps, kCodeTokens>(w, rows[0], rows[1], packed, n_tokens, sums[0], sums[1]);
    for (int r = 0; r < 2; ++r) {
      float results[kCodeTokens];
      for (std::int64_t t = 0; t < n_tokens; t += kWidth) store(results + t, trees(sums[r] + t));
      for (std::int64_t t = 0; t < n_tokens; ++t) y[t * y_stride + rows[r]] = results[t];
    }
  }
}

template <int kBits, std::size_t kSteps>
void matmul_integer_blocks(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                           std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  if (n_tokens == 1) return multiply_one_integer_token<kBits, kSteps>(w, begin, end, packed, y);
  for (std::int64_t t = 0; t < n_tokens; t += kCodeTokens) {
    multiply_integer_tokens<kBits, kSteps>(w, begin, end, packed + t * PackedIntegers(w).token_bytes,
                                           min(kCodeTokens, n_tokens - t), y + t * y_stride, y_stride);
  }
}

template <int kBits>
void matmul_integers_as(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                        std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  if (begin == end) return;
  switch (w.group_size) {
    case 32:
      return matmul_integer_blocks<kBits, 1>(w, begin, end, packed, n_tokens, y, y_stride);
    case 64:
      return matmul_integer_blocks<kBits, 2>(w, begin, end, packed, n_tokens, y, y_stride);
    default:
      return matmul_integer_blocks<kBits, 4>(w, begin, end, packed, n_tokens, y, y_stride);
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

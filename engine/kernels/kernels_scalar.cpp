// The definition of every kernel: what the SIMD tables must reproduce bit for bit. Written to be read, not to be fast.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/check.hpp"
#include "engine/kernels/affine_codec.hpp"
#include "engine/kernels/codec.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "engine/kernels/tables.hpp"

namespace kalibri::kernels {
namespace {

constexpr std::int64_t kLanes = 32;

/// s[i] += s[i + h] for h = 16, 8, 4, 2, 1; the result is s[0].
float tree(float* s) {
  for (std::int64_t h = kLanes / 2; h >= 1; h /= 2) {
    for (std::int64_t i = 0; i < h; ++i) s[i] += s[i + h];
  }
  return s[0];
}

/// sum_j w(j) x(j) over 0 <= j < n in the documented order.
template <class W, class X>
float dot32(std::int64_t n, W w, X x) {
  float sums[kLanes] = {};
  const std::int64_t n_padded = (n + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t j = 0; j < n_padded; ++j) {
    float& sum = sums[j % kLanes];
    sum = j < n ? std::fma(w(j), x(j), sum) : std::fma(0.0F, 0.0F, sum);
  }
  return tree(sums);
}

template <class T>
T load(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float dot(const float* a, const float* b, std::int64_t n) {
  return dot32(
      n, [a](std::int64_t j) { return a[j]; }, [b](std::int64_t j) { return b[j]; });
}

float weight_row_times(const MatrixView& w, std::int64_t row, const float* x) {
  const std::int64_t first = row * w.n_cols;
  const auto plain_x = [x](std::int64_t j) { return x[j]; };
  switch (w.format) {
    case Format::f32:
      return dot32(
          w.n_cols, [&](std::int64_t j) { return load<float>(w.data, first + j); }, plain_x);
    case Format::bf16:
      return dot32(
          w.n_cols, [&](std::int64_t j) { return bf16_to_f32(load<std::uint16_t>(w.data, first + j)); }, plain_x);
    case Format::e4m3_block: {
      const float* scales = w.scale_inv + row / kFp8Block * ((w.n_cols + kFp8Block - 1) / kFp8Block);
      const auto code_value = [&](std::int64_t j) {
        return e4m3_to_f32(load<std::uint8_t>(w.data, first + j)) * 0x1p-8F;
      };
      const auto scaled_x = [&](std::int64_t j) { return x[j] * (scales[j / kFp8Block] * 0x1p-22F); };
      return dot32(w.n_cols, code_value, scaled_x) * 0x1p30F;
    }
    case Format::affine: {
      std::vector<float> weights(static_cast<std::size_t>(w.n_cols));
      decode_row(w, row, weights.data());
      return dot(weights.data(), x, w.n_cols);
    }
  }
  throw InternalError(__FILE__, __LINE__, "unknown weight format");
}

std::size_t packed_size(std::int64_t n_tokens, std::int64_t n_cols) {
  return static_cast<std::size_t>(n_tokens * n_cols);
}

void pack(const Activations& x, std::int64_t token_begin, std::int64_t token_end, float* packed) {
  for (std::int64_t t = token_begin; t < token_end; ++t) {
    std::copy_n(x.data + t * x.stride, x.n_cols, packed + t * x.n_cols);
  }
}

std::size_t matmul_scratch(const MatrixView&, std::int64_t) { return 0; }

void matmul(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
            std::int64_t n_tokens, float* y, std::int64_t y_stride, float*) {
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    for (std::int64_t r = row_begin; r < row_end; ++r)
      y[t * y_stride + r] = weight_row_times(w, r, packed + t * w.n_cols);
  }
}

/// A token's integers: as many groups of a, of fl(float(S) * a), then the codes.
struct Integers {
  explicit Integers(const MatrixView& w)
      : n_groups(w.n_cols / w.group_size), token_bytes(8 * n_groups + 2 * w.n_cols) {}
  std::int64_t n_groups;
  std::int64_t token_bytes;
};

std::size_t packed_integers_size(const MatrixView& w, std::int64_t n_tokens) {
  return static_cast<std::size_t>(n_tokens * Integers(w).token_bytes);
}

void pack_integers(const MatrixView& w, const Activations& x, std::int32_t max_code, std::int64_t token_begin,
                   std::int64_t token_end, unsigned char* packed) {
  const Integers layout(w);
  const auto limit = static_cast<float>(max_code);
  for (std::int64_t t = token_begin; t < token_end; ++t) {
    unsigned char* token = packed + t * layout.token_bytes;
    for (std::int64_t g = 0; g < layout.n_groups; ++g) {
      const float* group = x.data + t * x.stride + g * w.group_size;
      float largest = 0;
      bool is_finite = true;
      for (std::int64_t j = 0; j < w.group_size; ++j) {
        largest = std::max(largest, std::fabs(group[j]));
        is_finite = is_finite && std::isfinite(group[j]);
      }
      const float a = is_finite ? largest / limit : std::numeric_limits<float>::quiet_NaN();
      std::int32_t sum = 0;
      for (std::int64_t j = 0; j < w.group_size; ++j) {
        const float q = a > 0 ? std::clamp(group[j] / a, -limit, limit) : 0.0F;
        const auto code = static_cast<std::int16_t>((q + 0x1.8p23F) - 0x1.8p23F);  // to nearest even
        sum += code;
        std::memcpy(token + 8 * layout.n_groups + 2 * (g * w.group_size + j), &code, sizeof code);
      }
      const float scaled_sum = static_cast<float>(sum) * a;
      std::memcpy(token + 4 * g, &a, sizeof a);
      std::memcpy(token + 4 * (layout.n_groups + g), &scaled_sum, sizeof scaled_sum);
    }
  }
}

void matmul_integers(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const unsigned char* packed,
                     std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  const Integers layout(w);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(w.n_cols));
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    unpack_codes(static_cast<const unsigned char*>(w.data) + r * row_bytes(w), w.n_cols, w.bits, codes.data());
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      const unsigned char* token = packed + t * layout.token_bytes;
      float sums[kLanes] = {};
      for (std::int64_t g = 0; g < layout.n_groups; ++g) {
        std::int32_t product = 0;
        for (std::int64_t j = g * w.group_size; j < (g + 1) * w.group_size; ++j) {
          product += codes[static_cast<std::size_t>(j)] * load<std::int16_t>(token + 8 * layout.n_groups, j);
        }
        const AffineGrid grid = stored_grid(w, r, g);
        float& sum = sums[g % kLanes];
        sum = std::fma(static_cast<float>(product), grid.scale * load<float>(token, g), sum);
        sum = std::fma(grid.bias, load<float>(token, layout.n_groups + g), sum);
      }
      y[t * y_stride + r] = tree(sums);
    }
  }
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  const float r = 1.0F / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = weight != nullptr ? (x[i] * r) * weight[i] : x[i] * r;
}

void rope(float* x, const float* cos, const float* sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = std::fma(a, cos[i], -(b * sin[i]));
    x[i + half] = std::fma(b, cos[i], a * sin[i]);
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = (gate[i] * sigmoid_f32(gate[i])) * up[i];
}

void sigmoid(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = sigmoid_f32(x[i]);
}

void add(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void axpy(float a, const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::fma(a, x[i], y[i]);
}

void silu(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * sigmoid_f32(x[i]);
}

void scale(float a, const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a * x[i];
}

void multiply(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] * x[i];
}

void multiply_add(const float* a, const float* b, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::fma(a[i], b[i], y[i]);
}

void conv(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < n_taps; ++j) sum = std::fma(weights[j * n + i], rows[j][i], sum);
    y[i] = sum;
  }
}

void conv_silu(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n, float* y) {
  conv(rows, weights, n_taps, n, y);
  silu(y, n, y);
}

void delta_rule(const DeltaTile& tile) {
  for (std::int64_t t = 0; t < tile.n_tokens; ++t) {
    const float* q = tile.q + t * tile.qkv_stride;
    const float* k = tile.k + t * tile.qkv_stride;
    const float alpha = tile.alpha[t * tile.gate_stride];
    const float beta = tile.beta[t * tile.gate_stride];
    for (std::int64_t c = 0; c < tile.n_columns; ++c) {
      float* s = tile.state + c;
      float p = 0;
      for (std::int64_t i = 0; i < tile.dk; ++i) {
        s[i * tile.state_stride] *= alpha;
        p = std::fma(k[i], s[i * tile.state_stride], p);
      }
      const float d = beta * (tile.v[t * tile.qkv_stride + c] - p);
      float o = 0;
      for (std::int64_t i = 0; i < tile.dk; ++i) {
        s[i * tile.state_stride] = std::fma(k[i], d, s[i * tile.state_stride]);
        o = std::fma(q[i], s[i * tile.state_stride], o);
      }
      tile.out[t * tile.out_stride + c] = o;
    }
  }
}

/// One of the heads; p is room for its scores.
void attend(const AttentionHeads& heads, const float* query, float* p, float* out) {
  std::int64_t n_keys = 0;
  for (std::int64_t run = 0; run < heads.n_runs; ++run) {
    for (std::int64_t i = 0; i < heads.runs[run].n_rows; ++i) {
      p[n_keys++] = dot(query, heads.runs[run].keys + i * heads.row_stride, heads.head_dim) * heads.scale;
    }
  }
  const float largest = *std::max_element(p, p + n_keys);

  float sums[kLanes] = {};
  for (std::int64_t i = 0; i < n_keys; ++i) {
    p[i] = exp_f32(p[i] - largest);
    sums[i % kLanes] += p[i];
  }
  const float denominator = tree(sums);

  for (std::int64_t d = 0; d < heads.head_dim; ++d) {
    float sum = 0;
    const float* weight = p;
    for (std::int64_t run = 0; run < heads.n_runs; ++run) {
      for (std::int64_t i = 0; i < heads.runs[run].n_rows; ++i) {
        sum = std::fma(*weight++, heads.runs[run].values[i * heads.row_stride + d], sum);
      }
    }
    out[d] = sum / denominator;
  }
}

void attention(const AttentionHeads& heads) {
  std::int64_t n_keys = 0;
  for (std::int64_t run = 0; run < heads.n_runs; ++run) n_keys += heads.runs[run].n_rows;
  for (std::int64_t h = 0; h < heads.n_heads; ++h) {
    const std::int64_t at = h * heads.head_dim;
    attend(heads, heads.queries + at, heads.scores + h * n_keys, heads.out + at);
  }
}

}  // namespace

const KernelTable kScalarKernels = {
    .isa = "scalar",
    .packed_size = packed_size,
    .pack = pack,
    .matmul_scratch = matmul_scratch,
    .matmul = matmul,
    .packed_integers_size = packed_integers_size,
    .pack_integers = pack_integers,
    .matmul_integers = matmul_integers,
    .dot = dot,
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_mul = silu_mul,
    .sigmoid = sigmoid,
    .add = add,
    .axpy = axpy,
    .silu = silu,
    .scale = scale,
    .multiply = multiply,
    .multiply_add = multiply_add,
    .conv = conv,
    .conv_silu = conv_silu,
    .delta_rule = delta_rule,
    .attention = attention,
};

}  // namespace kalibri::kernels

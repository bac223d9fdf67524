// Integer activations of one token or very few: several rows side by side, because long streams read faster together. A
// vector holds words of one row; a group's sums are added up across it.
#pragma once

#include "engine/kernels/integer_layout-inl.hpp"

namespace kalibri::kernels {
namespace {

constexpr std::int64_t kStreams = 4;
constexpr std::int64_t kGroupsAtOnce = 8;

/// The exact products of n <= kGroupsAtOnce groups of a row, whose codes lie at w, with the pairs at x.
template <int kBits, std::int64_t kGroupColumns>
KALIBRI_INLINE void multiply_streamed(const unsigned char* w, const unsigned char* x, std::int64_t n, CodeSums* sums) {
  constexpr std::int64_t kGroupBytes = kGroupColumns * kBits / 8;
  constexpr std::int64_t kGroupWords = kGroupColumns * kWordBits<kBits> / 32;
  constexpr int kWords = static_cast<int>(kGroupWords < kStreamedWords ? kGroupWords : kStreamedWords);
  constexpr std::int64_t kAheadBytes = 1024;
  for (std::int64_t line = 0; line < kGroupsAtOnce * kGroupBytes; line += 64) {
    __builtin_prefetch(w + kAheadBytes + line);
  }
  KALIBRI_UNROLL_TWICE for (std::int64_t g = 0; g < n; ++g, w += kGroupBytes, x += kGroupColumns * 2) {
    CodeSums sum = zero_code_sums();
    KALIBRI_UNROLL for (std::int64_t i = 0; i < kGroupWords / kWords; ++i) {
      sum = multiply_words<kBits, kWords>(w + i * word_bytes<kBits>(kWords), x + i * kWords * kPairs<kBits> * 4, sum);
    }
    sums[g] = sum;
  }
}

/// A row from some group on.
struct StreamedRow {
  const unsigned char* codes;
  const unsigned char* scales;
  const unsigned char* biases;
};

/// The 32 sums of a row go on by n <= kGroupsAtOnce groups; a, scaled_sums and pairs are theirs, and the first of the
/// sums is the first group's. Grids are asked for `ahead` bytes before their use.
template <int kBits, std::int64_t kGroupColumns, int kGridBytes>
KALIBRI_INLINE void stream_groups(StreamedRow* row, std::int64_t n, std::int64_t ahead, const unsigned char* a,
                                  const unsigned char* scaled_sums, const unsigned char* pairs, float* sums) {
  CodeSums products[kGroupsAtOnce];
  for (std::int64_t i = n; i < kGroupsAtOnce; ++i) products[i] = zero_code_sums();
  multiply_streamed<kBits, kGroupColumns>(row->codes, pairs, n, products);
  __builtin_prefetch(row->scales + ahead);
  __builtin_prefetch(row->biases + ahead);
  if (n == kGroupsAtOnce) {
    add_eight_groups<kGridBytes>(products, row->scales, row->biases, a, scaled_sums, sums);
  } else {
    unsigned char padded[2][std::size_t{kGroupsAtOnce * kGridBytes}] = {};  // +0 for those that are not there
    for (std::int64_t i = 0; i < n * kGridBytes; ++i) {
      padded[0][i] = row->scales[i];
      padded[1][i] = row->biases[i];
    }
    add_eight_groups<kGridBytes>(products, padded[0], padded[1], a, scaled_sums, sums);
  }
  row->codes += n * kGroupColumns * kBits / 8;
  row->scales += n * kGridBytes;
  row->biases += n * kGridBytes;
}

/// The 32 sums of kStreams rows: sums[s * kWidth * kLanes ...].
template <int kBits, std::int64_t kGroupColumns, int kGridBytes>
void stream_rows(const MatrixView& w, const PackedIntegers& layout, const std::int64_t* rows,
                 const unsigned char* packed, float* sums) {
  constexpr std::int64_t kAheadRows = 4;
  const std::int64_t grid_bytes = layout.n_groups * kGridBytes;
  StreamedRow streams[kStreams];
  KALIBRI_UNROLL for (std::int64_t s = 0; s < kStreams; ++s) {
    streams[s].codes =
        static_cast<const unsigned char*>(w.data) + rows[s] * layout.n_groups * (kGroupColumns * kBits / 8);
    streams[s].scales = static_cast<const unsigned char*>(w.scales) + rows[s] * grid_bytes;
    streams[s].biases = static_cast<const unsigned char*>(w.biases) + rows[s] * grid_bytes;
  }
  for (std::int64_t g = 0; g < layout.n_groups; g += kGroupsAtOnce) {
    const unsigned char* a = packed + g * 4;
    const unsigned char* pairs = packed + layout.pairs_at + g * kGroupColumns * 2;
    const std::int64_t n = min(kGroupsAtOnce, layout.n_groups - g);
    KALIBRI_NO_UNROLL for (std::int64_t s = 0; s < kStreams; ++s) {
      stream_groups<kBits, kGroupColumns, kGridBytes>(&streams[s], n, kAheadRows * grid_bytes, a, a + layout.sums_at,
                                                      pairs, sums + s * kWidth * kLanes + g % kLanes);
    }
  }
}

/// Rows [begin, end): kStreams equal parts side by side, kWidth rows of each with every token.
template <int kBits, std::int64_t kGroupColumns>
void stream_integers(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                     std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  const PackedIntegers layout(w, n_tokens);
  const std::int64_t part = (end - begin + kStreams - 1) / kStreams;
  const auto stream =
      w.grid_format == Format::f32 ? stream_rows<kBits, kGroupColumns, 4> : stream_rows<kBits, kGroupColumns, 2>;
  for (std::int64_t i = begin; i < begin + part; i += kWidth) {
    const std::int64_t n = min(kWidth, begin + part - i);
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      alignas(64) float sums[kStreams * kWidth * kLanes] = {};
      for (std::int64_t k = 0; k < n; ++k) {
        std::int64_t rows[kStreams];
        for (std::int64_t s = 0; s < kStreams; ++s) rows[s] = min(i + k + s * part, end - 1);
        stream(w, layout, rows, packed + t * layout.tile_bytes, sums + k * kLanes);
      }
      for (std::int64_t s = 0; s < kStreams; ++s) {
        const std::int64_t row = i + s * part;
        if (row >= end) break;  // fewer rows than streams
        store_up_to(y + t * y_stride + row, trees(sums + s * kWidth * kLanes), min(n, end - row));
      }
    }
  }
}

}  // namespace
}  // namespace kalibri::kernels

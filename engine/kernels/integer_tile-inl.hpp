// Integer activations of several tokens: a vector holds one word of kWidth rows, so that each lane adds up a group of
// its row and nothing is added across lanes; a pair of activations of up to kIntegerTile tokens stands against it.
#pragma once

#include "engine/kernels/integer_layout-inl.hpp"

namespace kalibri::kernels {
namespace {

constexpr std::int64_t kIntegerBlock = 4 * kIntegerTile;  // tokens that share what is made ready of kWidth rows
constexpr std::int64_t kMostGroupWords = 32;              // 128 codes of 8 bits

/// kWidth groups of kWidth rows: words, scales and biases with the rows in the lanes.
struct GroupPanel {
  Words words[kWidth * kMostGroupWords];
  Vector scales[kWidth];
  Vector biases[kWidth];
};

/// The kWidth rows from `row` on, of which those from `end` on are the last one again.
struct RowTile {
  std::int64_t row, end;
  [[nodiscard]] KALIBRI_INLINE std::int64_t at(std::int64_t i) const { return min(row + i, end - 1); }
};

/// kWidth words, of which n are there.
template <int kBits>
KALIBRI_INLINE Words load_first_words(const unsigned char* p, std::int64_t n) {
  unsigned char padded[word_bytes<kBits>(kWidth)] = {};
  if (n < kWidth) {
    __builtin_memcpy(padded, p, static_cast<std::size_t>(n * 4 * kBits / kWordBits<kBits>));
    p = padded;
  }
  return load_words<kBits>(p);
}

/// Groups [g, g + n) of the rows.
template <int kBits>
KALIBRI_INLINE void fill_panel(const MatrixView& w, const RowTile& rows, std::int64_t g, std::int64_t n,
                               GroupPanel* panel) {
  const std::int64_t n_groups = w.n_cols / w.group_size;
  const std::int64_t group_bytes = w.group_size * kBits / 8;
  const std::int64_t n_words = n * w.group_size * kWordBits<kBits> / 32;
  for (std::int64_t word = 0; word < n_words; word += kWidth) {
    Words* to = panel->words + word;
    KALIBRI_UNROLL for (std::int64_t i = 0; i < kWidth; ++i) {
      const unsigned char* from = static_cast<const unsigned char*>(w.data) +
                                  (rows.at(i) * n_groups + g) * group_bytes + word * 4 * kBits / kWordBits<kBits>;
      __builtin_prefetch(from + kWidth * n_groups * group_bytes);
      to[i] = load_first_words<kBits>(from, n_words - word);
    }
    transpose(to);
  }
  const auto fill_grid = [&](const void* grid, Vector* to) {
    Words lanes[kWidth];
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const std::int64_t at = (rows.at(i) * n_groups + g) * (w.grid_format == Format::f32 ? 4 : 2);
      alignas(64) float row[kWidth] = {};
      load_grid(static_cast<const unsigned char*>(grid) + at, min(n, kWidth), w.grid_format, row);
      lanes[i] = as_words(load(row));
    }
    transpose(lanes);
    for (std::int64_t i = 0; i < kWidth; ++i) to[i] = as_vector(lanes[i]);
  };
  fill_grid(w.scales, panel->scales);
  fill_grid(w.biases, panel->biases);
}

/// Where the groups of a panel meet a tile of tokens. sums: of the first group and token; those of the next token lie
/// beside it, those of the next group kIntegerBlock further.
struct GroupTile {
  const GroupPanel& panel;
  std::int64_t n_groups, group_words;
  const unsigned char* a;
  const unsigned char* scaled_sums;
  const unsigned char* pairs;
  Vector* sums;
};

/// The first kTokens tokens of the tile.
template <int kBits, int kTokens>
KALIBRI_INLINE void multiply_groups(const GroupTile& tile) {
  constexpr std::int64_t kStride = kIntegerTile * 4;
  const unsigned char* x = tile.pairs;
  const Words* words = tile.panel.words;
  for (std::int64_t g = 0; g < tile.n_groups; ++g) {
    Words products[std::size_t{kTokens}];
    KALIBRI_UNROLL for (int t = 0; t < kTokens; ++t) products[t] = zero_words();
    for (std::int64_t word = 0; word < tile.group_words; ++word, ++words) {
      KALIBRI_UNROLL for (int k = 0; k < kPairs<kBits>; ++k, x += kStride) {
        const Words codes = code_pairs<kBits>(*words, k);
        KALIBRI_UNROLL for (int t = 0; t < kTokens; ++t) {
          products[t] = multiply_pairs(codes, splat_pair(x + t * 4), products[t]);
        }
      }
    }
    KALIBRI_UNROLL for (int t = 0; t < kTokens; ++t) {
      Vector& sum = tile.sums[g * kIntegerBlock + t];
      const Vector scale = mul(tile.panel.scales[g], splat_f32(tile.a + g * kStride + t * 4));
      sum = fma(to_floats(products[t]), scale, sum);
      sum = fma(tile.panel.biases[g], splat_f32(tile.scaled_sums + g * kStride + t * 4), sum);
    }
  }
}

/// Rows of a tile with the tokens of a block.
template <int kBits>
void multiply_row_tile(const MatrixView& w, const RowTile& rows, const PackedIntegers& layout,
                       const unsigned char* packed, std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  Vector sums[kLanes * kIntegerBlock];  // of sum i and token t at i * kIntegerBlock + t
  std::int64_t n_sums = kLanes;         // the others stay +0
  while (n_sums / 2 >= layout.n_groups) n_sums /= 2;
  for (std::int64_t i = 0; i < n_sums; ++i) {
    for (std::int64_t t = 0; t < round_up(n_tokens, kIntegerTile); ++t) sums[i * kIntegerBlock + t] = zero();
  }
  GroupPanel panel;
  for (std::int64_t g = 0; g < layout.n_groups; g += kWidth) {
    const std::int64_t n = min(kWidth, layout.n_groups - g);
    fill_panel<kBits>(w, rows, g, n, &panel);
    for (std::int64_t t = 0; t < n_tokens; t += kIntegerTile) {
      const unsigned char* x = packed + t / kIntegerTile * layout.tile_bytes;
      constexpr std::int64_t kStride = kIntegerTile * 4;
      const unsigned char* a = x + g * kStride;
      const GroupTile tile = {panel,
                              n,
                              w.group_size * kWordBits<kBits> / 32,
                              a,
                              a + layout.sums_at,
                              x + layout.pairs_at + g * w.group_size / 2 * kStride,
                              sums + g % kLanes * kIntegerBlock + t};
      if (n_tokens - t <= 2) {
        multiply_groups<kBits, 2>(tile);
      } else if (n_tokens - t <= 4) {
        multiply_groups<kBits, 4>(tile);
      } else {
        multiply_groups<kBits, 8>(tile);
      }
    }
  }
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    const auto sum = [&](std::int64_t i) -> Vector& { return sums[i * kIntegerBlock + t]; };
    if (n_sums < kLanes) {  // adding +0 once is adding it as often as the tree does
      for (std::int64_t i = 0; i < n_sums; ++i) sum(i) = add(sum(i), zero());
    }
    for (std::int64_t half = n_sums / 2; half >= 1; half /= 2) {
      for (std::int64_t i = 0; i < half; ++i) sum(i) = add(sum(i), sum(i + half));
    }
    store_up_to(y + t * y_stride + rows.row, sum(0), rows.end - rows.row);
  }
}

template <int kBits>
void multiply_integer_tiles(const MatrixView& w, std::int64_t begin, std::int64_t end, const unsigned char* packed,
                            std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  const PackedIntegers layout(w, n_tokens);
  for (std::int64_t block = 0; block < n_tokens; block += kIntegerBlock) {
    const unsigned char* x = packed + block / kIntegerTile * layout.tile_bytes;
    for (std::int64_t row = begin; row < end; row += kWidth) {
      multiply_row_tile<kBits>(w, {row, end}, layout, x, min(kIntegerBlock, n_tokens - block), y + block * y_stride,
                               y_stride);
    }
  }
}

}  // namespace
}  // namespace kalibri::kernels

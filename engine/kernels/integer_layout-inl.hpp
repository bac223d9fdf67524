// Activations rounded to integers, as matmul_integers reads them: tiles of `width` tokens, each
//   a [groups][width], fl(float(S) * a) [groups][width], pairs of int16 [pairs][width].
// A pair stands against two codes of a word (isa_words.hpp). Many tokens: [word][pair of the word]. Few, each a tile of
// its own, whose words are multiplied kStreamedWords (or a whole group) at a time: [words][pair of the word][word].
#pragma once

#include "engine/kernels/weights-inl.hpp"

namespace kalibri::kernels {
namespace {

constexpr std::int64_t kIntegerTile = 8;     // tokens side by side, where there are more than
constexpr std::int64_t kStreamedTokens = 5;  // this many
constexpr std::int64_t kStreamedWords = 8;

struct PackedIntegers {
  PackedIntegers(const MatrixView& w, std::int64_t n_tokens)
      : n_groups(w.n_cols / w.group_size),
        width(n_tokens <= kStreamedTokens ? 1 : kIntegerTile),
        sums_at(round_up(n_groups, kLanes) * width * 4),
        pairs_at(2 * sums_at),
        // Who reads a group of fewer words than kStreamedWords reads beyond the last one.
        tile_bytes(round_up(pairs_at + w.n_cols / 2 * width * 4 + kStreamedWords * 4, 64)) {}
  std::int64_t n_groups, width, sums_at, pairs_at, tile_bytes;

  /// Where token t lies; its entries are `width` * 4 bytes apart.
  [[nodiscard]] KALIBRI_INLINE unsigned char* token(unsigned char* packed, std::int64_t t) const {
    return packed + t / width * tile_bytes + t % width * 4;
  }
};

}  // namespace
}  // namespace kalibri::kernels

// Byte-pair encoding of one piece of text. It knows ids and bytes, not characters.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer_file.hpp"

namespace kalibri::text {

class Bpe {
 public:
  /// Memory that encode uses, for one thread; it grows with the longest piece.
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::uint32_t previous, next;  // neighbours that are not merged away
      std::uint32_t rank;            // of the pair that begins here
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;
  };

  /// Throws Error(format) when a byte has no symbol in the vocabulary, or when a half or the result of a merge has no
  /// entry. `path` names the file in messages.
  Bpe(const TokenizerFile& file, const std::filesystem::path& path);

  /// Appends the ids of `piece` (any bytes, fewer than 2^32): one a byte at first, then the neighbours of the lowest
  /// rank are merged, the leftmost first among equals, until none has a rank. O(n log n).
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// The place of a pair in the table, or the free place where it would be.
  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const;
  [[nodiscard]] std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;

  struct Slot {
    std::uint64_t pair;  // left id in the upper half, right id in the lower
    std::uint32_t rank;  // kNone: free
  };
  std::array<std::int32_t, 256> byte_ids_;
  std::vector<std::int32_t> results_;  // by rank
  std::vector<Slot> slots_;            // open addressing, at most half full; a power of two
  int shift_ = 0;
};

}  // namespace kalibri::text

// Finds added tokens in a text: those that are matched as they are written, before anything is cut into pieces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer_file.hpp"

namespace kalibri::text {

/// A stretch of text between added tokens, or one of them with the whitespace that belongs to it.
struct TextPart {
  std::string_view text;
  std::optional<std::int32_t> id;  // of the added token
};

class AddedTokenFinder {
 public:
  /// `token.content` is what is looked for: at least one byte of well-formed UTF-8.
  void add(AddedToken token, std::int32_t id);

  /// Cuts well-formed UTF-8 at its added tokens, in order. At each place the longest that begins there is taken, and
  /// the search goes on behind it (Hugging Face tokenizers 0.22, added_vocabulary.rs, find_matches).
  [[nodiscard]] std::vector<TextPart> split(std::string_view text) const;

 private:
  struct Entry {
    AddedToken token;
    std::int32_t id;
  };
  [[nodiscard]] const Entry* longest_at(std::string_view text, std::size_t pos) const;

  std::vector<Entry> entries_;      // by content
  std::array<bool, 256> begins_{};  // whether an entry begins with this byte
};

}  // namespace kalibri::text

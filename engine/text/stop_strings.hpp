// Texts at which an answer ends, found while it arrives. It works on decoded text, not on tokens: the same text can
// come as different tokens, and a match can begin in one and end in another.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kalibri::text {

/// The match that is complete first ends the text; of several that are complete at the same byte, the longest counts.
/// The text ends where the match begins. How the text is cut into pieces changes nothing.
class StopStrings {
 public:
  static constexpr std::size_t kMaxStrings = 16;
  static constexpr std::size_t kMaxBytes = 256;

  /// Throws Error(usage): an empty string, one that is no UTF-8 or has more than kMaxBytes, more than kMaxStrings.
  explicit StopStrings(const std::vector<std::string>& strings);

  /// The text that is certain once `text` has come: what might begin a match is held back. Nothing after a match. When
  /// it is given whole characters, it gives whole characters.
  std::string feed(std::string_view text);
  /// What was held back, at the end of a text without a match.
  std::string flush();
  [[nodiscard]] bool has_matched() const { return has_matched_; }

 private:
  /// One string, and how much of it the text ends with. Source: Knuth, Morris and Pratt, "Fast pattern matching in
  /// strings", 1977.
  struct Needle {
    std::string bytes;
    std::vector<std::size_t> borders;  // borders[n]: of the first n bytes, the longest proper prefix that ends them
    std::size_t n_matched = 0;
  };

  std::vector<Needle> needles_;
  std::string held_;
  bool has_matched_ = false;
};

}  // namespace kalibri::text

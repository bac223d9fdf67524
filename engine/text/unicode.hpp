// Classes of code points, and UTF-8: what the scanners and the normaliser look up for each character. It knows nothing
// of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kalibri::text {

/// What a code point is, as bits; most have one or none. Unicode 16.0, except for `inert` (unicode_ranges.hpp).
struct CodeClass {
  static constexpr std::uint8_t letter = 1;
  static constexpr std::uint8_t mark = 2;
  static constexpr std::uint8_t number = 4;
  static constexpr std::uint8_t space = 8;
  static constexpr std::uint8_t word = 16;  // what \w matches: Alphabetic, marks, decimal digits, connectors, joiners
  static constexpr std::uint8_t inert = 32;
};

/// The table of all classes by code point: 0x110000 bytes, made on first use.
const std::uint8_t* code_classes();

/// A character of well-formed UTF-8.
struct Character {
  char32_t code;
  std::uint32_t n_bytes;
};

/// The character that begins at text[pos]. The text is well-formed and pos < text.size() is where a character begins.
inline Character character_at(std::string_view text, std::size_t pos) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[pos + i]));
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

/// Appends `code`, a Unicode scalar value, as UTF-8.
void append_utf8(char32_t code, std::string& out);

/// Turns any bytes into well-formed UTF-8, piece by piece: what is whole goes out at once, the beginning of a character
/// is held back until it is complete. Each maximal ill-formed part becomes one U+FFFD (Unicode 16.0, section 3.9,
/// "U+FFFD Substitution of Maximal Subparts"; the same as the WHATWG decoder). What went out is never revised.
class Utf8Stream {
 public:
  void feed(std::string_view bytes, std::string& out);
  /// Ends the text: a character that was begun becomes U+FFFD. The stream is as new then.
  void flush(std::string& out);

 private:
  void feed_byte(unsigned char byte, std::string& out);

  char pending_[4] = {};
  int n_pending_ = 0;
  int n_missing_ = 0;
  unsigned char low_ = 0x80;  // the range of the next byte, when one is missing
  unsigned char high_ = 0xBF;
};

/// `bytes` as well-formed UTF-8.
std::string to_utf8(std::string_view bytes);

/// Whether `bytes` are well-formed UTF-8: then to_utf8 gives the same bytes.
bool is_utf8(std::string_view bytes);

}  // namespace kalibri::text

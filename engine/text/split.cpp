#include "engine/text/split.hpp"

#include "engine/text/unicode.hpp"

namespace kalibri::text {
namespace {

constexpr char32_t kLongS =
    0x17F;  // the one character beyond ASCII that equals one of the contractions' regardless of case

/// A text with the class of each of its characters.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(code_classes()) {}

  [[nodiscard]] std::size_t size() const { return text_.size(); }
  [[nodiscard]] Character at(std::size_t pos) const { return character_at(text_, pos); }
  /// The class bits at `pos`, of which `mask` has any; none at the end.
  [[nodiscard]] bool is(std::size_t pos, std::uint8_t mask) const {
    return pos < text_.size() && (classes_[at(pos).code] & mask) != 0;
  }
  [[nodiscard]] bool is_none_of(std::size_t pos, std::uint8_t mask) const {
    return pos < text_.size() && (classes_[at(pos).code] & mask) == 0;
  }
  [[nodiscard]] bool is_byte(std::size_t pos, char byte) const { return pos < text_.size() && text_[pos] == byte; }
  [[nodiscard]] bool is_newline(std::size_t pos) const { return is_byte(pos, '\r') || is_byte(pos, '\n'); }
  [[nodiscard]] std::size_t after(std::size_t pos) const { return pos + at(pos).n_bytes; }

  [[nodiscard]] std::size_t skip(std::size_t pos, std::uint8_t mask) const {
    while (is(pos, mask)) pos = after(pos);
    return pos;
  }
  [[nodiscard]] std::size_t skip_none_of(std::size_t pos, std::uint8_t mask) const {
    while (is_none_of(pos, mask)) pos = after(pos);
    return pos;
  }
  [[nodiscard]] std::size_t skip_newlines(std::size_t pos) const {
    while (is_newline(pos)) ++pos;
    return pos;
  }

  /// 's|'t|'re|'ve|'m|'ll|'d, where text[pos] is the apostrophe: the end, or `pos` when there is none.
  [[nodiscard]] std::size_t contraction_end(std::size_t pos, bool any_case) const {
    const auto letter = [&](std::size_t i) {
      const char byte = i < text_.size() ? text_[i] : '\0';
      return any_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
    };
    const char first = letter(pos + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
    const char second = letter(pos + 2);
    if (((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l')) return pos + 3;
    if (any_case && pos + 1 < text_.size() && at(pos + 1).code == kLongS) return pos + 3;
    return pos;
  }

  /// \s+(?!\S)|\s+ where text[pos] is a space: a run without its last character, if something follows it.
  [[nodiscard]] std::size_t space_end(std::size_t pos) const {
    std::size_t last = pos;
    std::size_t end = after(pos);
    while (is(end, CodeClass::space)) {
      last = end;
      end = after(end);
    }
    return end == size() || last == pos ? end : last;
  }

 private:
  std::string_view text_;
  const std::uint8_t* classes_;
};

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?X+|\p{N}| ?[^\sX\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
/// where X are the characters of class `in_word`: letters, or letters and marks.
std::size_t word_piece_end(const Scanner& text, std::size_t pos, std::uint8_t in_word) {
  if (text.is_byte(pos, '\'')) {
    const std::size_t end = text.contraction_end(pos, true);
    if (end != pos) return end;
  }
  const std::size_t next = text.after(pos);
  const bool may_lead = text.is_none_of(pos, CodeClass::letter | CodeClass::number) && !text.is_newline(pos);
  if (text.is(pos, in_word) || (may_lead && text.is(next, in_word))) return text.skip(next, in_word);
  if (text.is(pos, CodeClass::number)) return next;

  const std::uint8_t not_symbol = CodeClass::space | CodeClass::number | in_word;
  const std::size_t symbols = text.is_byte(pos, ' ') ? next : pos;
  if (text.is_none_of(symbols, not_symbol)) return text.skip_newlines(text.skip_none_of(symbols, not_symbol));

  std::size_t after_newline = pos;
  for (std::size_t i = pos; text.is(i, CodeClass::space); i = text.after(i)) {
    if (text.is_newline(i)) after_newline = i + 1;
  }
  return after_newline != pos ? after_newline : text.space_end(pos);
}

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t gpt2_piece_end(const Scanner& text, std::size_t pos) {
  if (text.is_byte(pos, '\'')) {
    const std::size_t end = text.contraction_end(pos, false);
    if (end != pos) return end;
  }
  const std::size_t start = text.is_byte(pos, ' ') ? pos + 1 : pos;
  for (const std::uint8_t one_class : {CodeClass::letter, CodeClass::number}) {
    if (text.is(start, one_class)) return text.skip(start, one_class);
  }
  const std::uint8_t not_symbol = CodeClass::space | CodeClass::letter | CodeClass::number;
  if (text.is_none_of(start, not_symbol)) return text.skip_none_of(start, not_symbol);
  return text.space_end(pos);
}

}  // namespace

std::size_t piece_end(SplitPattern pattern, std::string_view text, std::size_t pos) {
  const Scanner scanner(text);
  switch (pattern) {
    case SplitPattern::letters:
      return word_piece_end(scanner, pos, CodeClass::letter);
    case SplitPattern::letters_and_marks:
      return word_piece_end(scanner, pos, CodeClass::letter | CodeClass::mark);
    case SplitPattern::gpt2:
      return gpt2_piece_end(scanner, pos);
  }
  return text.size();
}

}  // namespace kalibri::text

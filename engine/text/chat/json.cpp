#include "engine/text/chat/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "engine/text/chat/strip.hpp"

namespace kalibri::chat {

namespace {

using Kind = Json::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Length of the valid UTF-8 sequence (RFC 3629) that `text` begins with; 0 when it begins with none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  const unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;  // no overlong forms
  const unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;   // no surrogates, nothing > U+10FFFF
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class Parser {
 public:
  Parser(std::string_view text, std::size_t max_depth) : text_(text), max_depth_(max_depth) {}

  std::optional<Json> parse() {
    Json value;
    skip_whitespace();
    if (!read(value, 0)) return std::nullopt;
    skip_whitespace();
    if (at_ != text_.size() && !fail("text after the value")) return std::nullopt;
    return value;
  }

  [[nodiscard]] std::string error() const { return fmt::format("byte {}: {}", at_, error_); }

 private:
  bool fail(const char* what) {
    error_ = what;
    return false;
  }
  [[nodiscard]] bool looking_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!looking_at(c)) return false;
    ++at_;
    return true;
  }
  void skip_whitespace() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  bool read(Json& value, std::size_t depth) {
    if (at_ == text_.size()) return fail("the text ends where a value should be");
    value.begin = at_;
    if (!read_value(value, depth)) return false;
    value.end = at_;
    return true;
  }

  bool read_value(Json& value, std::size_t depth) {
    switch (text_[at_]) {
      case '{':
      case '[':
        if (depth == max_depth_) return fail("nested too deep");
        return text_[at_] == '{' ? read_object(value, depth + 1) : read_array(value, depth + 1);
      case '"':
        value.kind = Kind::string;
        return read_string(value.text);
      case 't':
        value.boolean = true;
        return read_word("true", value, Kind::boolean);
      case 'f':
        return read_word("false", value, Kind::boolean);
      case 'n':
        return read_word("null", value, Kind::null);
      default:
        return read_number(value);
    }
  }

  bool read_word(std::string_view word, Json& value, Kind kind) {
    if (text_.substr(at_, word.size()) != word) return fail("no JSON value");
    at_ += word.size();
    value.kind = kind;
    return true;
  }

  bool read_digits() {
    const std::size_t first = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > first;
  }

  bool read_number(Json& value) {
    const std::size_t first = at_;
    take('-');
    if (!take('0') && !read_digits()) return fail("no JSON value");
    if (take('.') && !read_digits()) return fail("no digit after the decimal point");
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!read_digits()) return fail("no digit in the exponent");
    }
    value.kind = Kind::number;
    value.text = text_.substr(first, at_ - first);
    return true;
  }

  bool read_hex4(std::uint32_t& code) {
    code = 0;
    const char* first = text_.data() + at_;
    const char* last = first + std::min<std::size_t>(4, text_.size() - at_);
    if (last - first != 4 || std::from_chars(first, last, code, 16).ptr != last || *first == '-') {
      return fail("\\u without four hexadecimal digits");
    }
    at_ += 4;
    return true;
  }

  bool read_escape(std::string& out) {
    if (at_ == text_.size()) return fail("the text ends within a string");
    const char c = text_[at_++];
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (const std::size_t i = kLetters.find(c); i != std::string_view::npos) {
      out += kMeanings[i];
      return true;
    }
    std::uint32_t code = 0, low = 0;
    if (c != 'u') return fail("an unknown escape");
    if (!read_hex4(code)) return false;
    if (code >= 0xD800 && code < 0xE000) {
      const bool is_pair = code < 0xDC00 && take('\\') && take('u') && read_hex4(low) && low >= 0xDC00 && low < 0xE000;
      if (!is_pair) return fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
    return true;
  }

  bool read_string(std::string& out) {
    ++at_;  // the quote
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (take('"')) return true;
      if (take('\\')) {
        if (!read_escape(out)) return false;
        continue;
      }
      const std::size_t length = utf8_length(text_.substr(at_));
      if (length == 0) return fail("no valid UTF-8");
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character within a string");
      out.append(text_, at_, length);
      at_ += length;
    }
    return fail("the text ends within a string");
  }

  bool read_array(Json& value, std::size_t depth) {
    value.kind = Kind::array;
    ++at_;
    skip_whitespace();
    if (take(']')) return true;
    do {
      skip_whitespace();
      if (!read(value.items.emplace_back(), depth)) return false;
      skip_whitespace();
    } while (take(','));
    return take(']') || fail("neither ',' nor ']' after an element");
  }

  bool read_object(Json& value, std::size_t depth) {
    value.kind = Kind::object;
    std::unordered_map<std::string, std::size_t> places;
    ++at_;
    skip_whitespace();
    if (take('}')) return true;
    do {
      skip_whitespace();
      if (!looking_at('"')) return fail("no string where a key should be");
      std::string key;
      if (!read_string(key)) return false;
      skip_whitespace();
      if (!take(':')) return fail("no ':' after a key");
      skip_whitespace();
      Json member;
      if (!read(member, depth)) return false;
      const auto [place, is_new] = places.emplace(key, value.items.size());
      if (is_new) {
        value.keys.push_back(std::move(key));
        value.items.push_back(std::move(member));
      } else {
        value.items[place->second] = std::move(member);
      }
      skip_whitespace();
    } while (take(','));
    return take('}') || fail("neither ',' nor '}' after a member");
  }

  std::string_view text_;
  std::size_t max_depth_;
  std::size_t at_ = 0;
  const char* error_ = "";
};

/// Of a number too large or too small for a double: whether it is too small.
bool is_tiny(std::string_view number) {
  const std::size_t mark = std::min(number.find_first_of("eE"), number.size());
  const std::string_view mantissa = number.substr(0, mark);
  const auto point = static_cast<long long>(std::min(mantissa.find('.'), mantissa.size()));
  const auto first = static_cast<long long>(std::min(mantissa.find_first_of("123456789"), mantissa.size()));
  long long exponent = 0;
  if (mark < number.size()) {
    const std::size_t begin = mark + (number[mark + 1] == '+' ? 2 : 1);
    const auto result = std::from_chars(number.data() + begin, number.data() + number.size(), exponent);
    if (result.ec == std::errc::result_out_of_range) return number[mark + 1] == '-';
  }
  return exponent < first - point;
}

/// The double nearest to a number; nothing when it is beyond the largest.
std::optional<double> to_double(std::string_view number) {
  double value = 0;
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    if (!is_tiny(number)) return std::nullopt;
    value = number.front() == '-' ? -0.0 : 0.0;
  }
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

/// As Python's repr of a float.
void append_float(std::string& out, double value) {
  char buffer[32];
  const auto written = std::to_chars(std::begin(buffer), std::end(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<std::size_t>(written.ptr - buffer));
  const std::size_t mark = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + mark + (text[mark + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(text.substr(0, mark));
  if (digits.front() == '-') {
    out += '-';
    digits.erase(0, 1);
  }
  std::erase(digits, '.');
  if (exponent < -4 || exponent >= 16) {
    out += digits.front();
    if (digits.size() > 1) out += '.' + digits.substr(1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto n_whole = static_cast<std::size_t>(exponent) + 1;
    digits.resize(std::max(digits.size(), n_whole + 1), '0');
    out += digits.substr(0, n_whole) + '.' + digits.substr(n_whole);
  }
}

void append(std::string& out, const Json& value) {
  switch (value.kind) {
    case Kind::null:
      out += "null";
      break;
    case Kind::boolean:
      out += value.boolean ? "true" : "false";
      break;
    case Kind::number:
      if (value.text == "-0") {
        out += '0';
      } else if (is_integer(value.text)) {
        out += value.text;
      } else {
        append_float(out, to_double(value.text).value());
      }
      break;
    case Kind::string:
      out += json_quoted(value.text);
      break;
    case Kind::array:
    case Kind::object:
      out += value.is(Kind::array) ? '[' : '{';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ", ";
        if (value.is(Kind::object)) out += json_quoted(value.keys[i]) + ": ";
        append(out, value.items[i]);
      }
      out += value.is(Kind::array) ? ']' : '}';
      break;
  }
}

}  // namespace

const Json* Json::find(std::string_view key) const {
  const auto place = std::find(keys.begin(), keys.end(), key);
  return place == keys.end() ? nullptr : &items[static_cast<std::size_t>(place - keys.begin())];
}

const Json* Json::find_value(std::string_view key) const {
  const Json* member = find(key);
  return member == nullptr || member->is(Kind::null) ? nullptr : member;
}

std::optional<Json> parse_json(std::string_view text, std::string* error, std::size_t max_depth) {
  Parser parser(text, max_depth);
  std::optional<Json> value = parser.parse();
  if (!value && error != nullptr) *error = parser.error();
  return value;
}

std::string to_text(const Json& value) {
  std::string out;
  append(out, value);
  return out;
}

std::string json_quoted(std::string_view text) {
  constexpr std::string_view kMeanings = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  std::string out = "\"";
  for (std::size_t at = 0, length = 0; at < text.size(); at += std::max<std::size_t>(length, 1)) {
    const char c = text[at];
    length = utf8_length(text.substr(at));
    if (length == 0) {
      append_utf8(out, 0xFFFD);
    } else if (const std::size_t i = kMeanings.find(c); i != std::string_view::npos) {
      out += '\\';
      out += kLetters[i];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(at, length);
    }
  }
  return out += '"';
}

bool has_numbers_in_range(const Json& value) {
  if (value.is(Kind::number)) return is_integer(value.text) || to_double(value.text).has_value();
  return std::ranges::all_of(value.items, has_numbers_in_range);
}

bool equal(const Json& a, const Json& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  switch (a.kind) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return a.boolean == b.boolean;
    case Kind::number: {
      const std::optional<double> x = to_double(a.text), y = to_double(b.text);
      return a.text == b.text || (x && y && !(*x < *y) && !(*x > *y));
    }
    case Kind::string:
      return a.text == b.text;
    case Kind::array:
      return std::ranges::equal(a.items, b.items, equal);
    case Kind::object:
      for (std::size_t i = 0; i < a.items.size(); ++i) {
        const Json* other = b.find(a.keys[i]);
        if (other == nullptr || !equal(a.items[i], *other)) return false;
      }
      return true;
  }
  return false;
}

bool is_integer(std::string_view number) { return number.find_first_of(".eE") == std::string_view::npos; }

}  // namespace kalibri::chat

// JSON as chat needs it: key order kept, numbers as they were spelled, and where in the text a value stood. Written as
// Python's json.dumps(x, ensure_ascii=False) writes it, because that is the form which the models were trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kalibri::chat {

struct Json {
  enum class Kind : std::uint8_t { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  bool boolean = false;
  std::string text = {};               // a string's value in UTF-8; a number as it was spelled
  std::vector<std::string> keys = {};  // of an object, in order; keys[i] belongs to items[i]
  std::vector<Json> items = {};        // of an array or an object
  std::size_t begin = 0, end = 0;      // where the value stood in the text that was parsed

  [[nodiscard]] bool is(Kind wanted) const { return kind == wanted; }
  /// The member `key` of an object; nullptr when it is absent or this is no object.
  [[nodiscard]] const Json* find(std::string_view key) const;
  /// As find, but a member that is null counts as absent.
  [[nodiscard]] const Json* find_value(std::string_view key) const;
};

constexpr std::size_t kMaxJsonDepth = 64;

/// Strict JSON (RFC 8259), one value and nothing but whitespace around it: valid UTF-8, no lone surrogates, nested at
/// most `max_depth` deep. A repeated key keeps its first place and takes its last value. The error is an empty value
/// with what was wrong (and the byte) in `error`, when one is given.
std::optional<Json> parse_json(std::string_view text, std::string* error = nullptr,
                               std::size_t max_depth = kMaxJsonDepth);

/// As json.dumps(x, ensure_ascii=False): ", " and ": ", integers as spelled, other numbers as the shortest decimal that
/// reads back as the same double. Every number must be in range (has_numbers_in_range).
std::string to_text(const Json& value);

/// A string in JSON's quotes; only what must be escaped is. Bytes that are no UTF-8 become U+FFFD, one each: JSON has
/// no others.
std::string json_quoted(std::string_view text);

/// Whether every number that is no integer fits a double (1e999 does not; integers may have any length).
bool has_numbers_in_range(const Json& value);

/// Equal as JSON values: numbers by value, objects whatever their order. Numbers beyond a double: by spelling.
bool equal(const Json& a, const Json& b);

/// Whether a number is spelled as an integer: no fraction, no exponent.
bool is_integer(std::string_view number);

}  // namespace kalibri::chat

#include "engine/text/nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/check.hpp"
#include "engine/text/unicode.hpp"

namespace kalibri::text {
namespace {

// Below U+0300 every character is its own NFC, and none joins the one before it: a text can be cut before each.
constexpr char32_t kFirstMark = 0x300;
constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

std::uint64_t combining_class(utf8proc_int32_t code) {
  return static_cast<std::uint64_t>(utf8proc_get_property(code)->combining_class);
}

/// Brings each run of marks into canonical order. utf8proc_decompose would exchange neighbours until all are in order,
/// which is quadratic in the length of a run.
void sort_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto is_mark = [](utf8proc_int32_t code) { return combining_class(code) != 0; };
  for (auto first = codes.begin(); (first = std::find_if(first, codes.end(), is_mark)) != codes.end();) {
    const auto last = std::find_if_not(first, codes.end(), is_mark);
    std::stable_sort(first, last, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    first = last;
  }
}

/// Appends the NFC of `text`, which holds no inert code point. `codes` is scratch memory.
void append_nfc(std::string_view text, std::vector<utf8proc_int32_t>& codes, std::string& out) {
  codes.clear();
  for (std::size_t pos = 0; pos < text.size();) {
    const auto [code, n_bytes] = character_at(text, pos);
    utf8proc_int32_t parts[8];  // no canonical decomposition has more than four
    const auto n_parts = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 8, kOptions, nullptr);
    KALIBRI_CHECK(n_parts >= 1 && n_parts <= 8, "utf8proc_decompose_char");
    codes.insert(codes.end(), parts, parts + n_parts);
    pos += n_bytes;
  }
  sort_marks(codes);
  const auto n = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), kOptions);
  KALIBRI_CHECK(n >= 0, "utf8proc_normalize_utf32");
  for (utf8proc_ssize_t i = 0; i < n; ++i) append_utf8(static_cast<char32_t>(codes[static_cast<std::size_t>(i)]), out);
}

}  // namespace

std::string nfc(std::string_view text) {
  const std::uint8_t* const classes = code_classes();
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> codes;
  std::size_t begin = 0;  // of the stretch that is still to go out
  bool is_plain = true;   // it is one character below U+0300, or empty
  const auto flush = [&](std::size_t end) {
    const std::string_view stretch = text.substr(begin, end - begin);
    if (is_plain) {
      out.append(stretch);
    } else {
      append_nfc(stretch, codes, out);
    }
    begin = end;
    is_plain = true;
  };
  for (std::size_t pos = 0; pos < text.size();) {
    const auto [code, n_bytes] = character_at(text, pos);
    const bool is_inert = (classes[code] & CodeClass::inert) != 0;
    if (code < kFirstMark || is_inert) {
      flush(pos);
    } else {
      is_plain = false;
    }
    pos += n_bytes;
    if (is_inert) flush(pos);
  }
  flush(text.size());
  return out;
}

}  // namespace kalibri::text

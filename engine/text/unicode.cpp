#include "engine/text/unicode.hpp"

#include <cstring>
#include <memory>
#include <span>

#include "engine/text/unicode_ranges.hpp"

namespace kalibri::text {
namespace {

constexpr std::size_t kCodes = 0x110000;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::unique_ptr<std::uint8_t[]> make_classes() {
  auto classes = std::make_unique<std::uint8_t[]>(kCodes);
  const auto set = [&](std::span<const CodeRange> ranges, std::uint8_t bits) {
    for (const auto& [first, last] : ranges) {
      for (char32_t code = first; code <= last; ++code) classes[code] |= bits;
    }
  };
  set(kLetterRanges, CodeClass::letter | CodeClass::word);
  set(kMarkRanges, CodeClass::mark | CodeClass::word);
  set(kNumberRanges, CodeClass::number | CodeClass::word);
  for (const auto& [first, last] : kOtherNumberRanges) {
    for (char32_t code = first; code <= last; ++code) classes[code] = CodeClass::number;
  }
  set(kSpaceRanges, CodeClass::space);
  set(kOtherWordRanges, CodeClass::word);
  set(kInertRanges, CodeClass::inert);
  return classes;
}

/// The end of the ASCII characters from `pos` on.
std::size_t ascii_end(std::string_view bytes, std::size_t pos) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  while (pos + sizeof(std::uint64_t) <= bytes.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + pos, sizeof(word));
    if ((word & kHighBits) != 0) break;
    pos += sizeof(word);
  }
  while (pos < bytes.size() && static_cast<unsigned char>(bytes[pos]) < 0x80) ++pos;
  return pos;
}

}  // namespace

const std::uint8_t* code_classes() {
  static const std::unique_ptr<std::uint8_t[]> classes = make_classes();
  return classes.get();
}

void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

void Utf8Stream::feed(std::string_view bytes, std::string& out) {
  for (std::size_t pos = 0; pos < bytes.size();) {
    const std::size_t end = n_missing_ == 0 ? ascii_end(bytes, pos) : pos;
    out.append(bytes.substr(pos, end - pos));
    if (end < bytes.size()) feed_byte(static_cast<unsigned char>(bytes[end]), out);
    pos = end + 1;
  }
}

void Utf8Stream::feed_byte(unsigned char byte, std::string& out) {
  if (n_missing_ > 0 && byte >= low_ && byte <= high_) {
    pending_[n_pending_++] = static_cast<char>(byte);
    low_ = 0x80;
    high_ = 0xBF;
    if (--n_missing_ > 0) return;
    out.append(pending_, static_cast<std::size_t>(n_pending_));
    n_pending_ = 0;
    return;
  }
  flush(out);
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
  } else if (byte < 0xC2 || byte > 0xF4) {
    out.append(kReplacement);
  } else {
    pending_[n_pending_++] = static_cast<char>(byte);
    n_missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;   // below lie overlong forms
    high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;  // above lie surrogates, and what is no code point
  }
}

void Utf8Stream::flush(std::string& out) {
  if (n_pending_ > 0) out.append(kReplacement);
  n_pending_ = 0;
  n_missing_ = 0;
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  Utf8Stream stream;
  stream.feed(bytes, text);
  stream.flush(text);
  return text;
}

bool is_utf8(std::string_view bytes) { return ascii_end(bytes, 0) == bytes.size() || to_utf8(bytes) == bytes; }

}  // namespace kalibri::text

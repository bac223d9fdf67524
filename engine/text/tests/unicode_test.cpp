// UTF-8 as a stream, words, and NFC, by hand and against slower versions of the same.
#include "engine/text/unicode.hpp"

#include <utf8proc.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/text/base64.hpp"
#include "engine/text/nfc.hpp"
#include "engine/text/tests/random.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::text {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST_CASE("each maximal ill-formed part of UTF-8 becomes one replacement character") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x80", kBad},
      {"\xC0\x80", kBad + kBad},                        // an overlong form
      {"\xE0\x80\x80", kBad + kBad + kBad},             // another
      {"\xED\xA0\x80", kBad + kBad + kBad},             // a surrogate
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},  // above U+10FFFF
      {"\xF5\x80", kBad + kBad},
      {"\xC3", kBad},
      {"\xE2\x82", kBad},  // cut off: one part
      {"\xF0\x9F\x98", kBad},
      {"\xE2\x82z", kBad + "z"},
      {"\xE2\x82\xC3\xA4", kBad + "\xC3\xA4"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", kBad + "\xF0\x9F\x98\x80"},
  };
  for (const auto& [bytes, text] : cases) {
    CAPTURE(bytes);
    CHECK(to_utf8(bytes) == text);
    CHECK_FALSE(is_utf8(bytes));
    CHECK(is_utf8(text));
  }
  const std::string ends = std::string("\0", 1) +
                           "\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF" +
                           "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF";  // the first and last of each length
  CHECK(is_utf8(ends));
  CHECK(to_utf8(ends) == ends);
}

TEST_CASE("a stream gives the same text however its bytes are cut, and never half a character") {
  test::Random generator(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 24; ++i) {
      constexpr unsigned char kChoices[] = {'a', 0x80, 0xBF, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0x9F, 0x98, 0xF4, 0xFF};
      bytes.push_back(static_cast<char>(kChoices[generator.below(sizeof(kChoices))]));
    }
    std::string streamed;
    Utf8Stream stream;
    for (std::size_t pos = 0; pos < bytes.size();) {
      const std::size_t n = 1 + generator.below(4);
      std::string released;
      stream.feed(std::string_view(bytes).substr(pos, n), released);
      REQUIRE(is_utf8(released));
      streamed += released;
      pos += n;
    }
    stream.flush(streamed);
    CAPTURE(round, bytes);
    REQUIRE(streamed == to_utf8(bytes));
    REQUIRE(is_utf8(streamed));
  }
}

TEST_CASE("words are letters, marks, decimal digits, letter numbers, connectors and joiners, and no other numbers") {
  const auto is_word = [](char32_t code) { return (code_classes()[code] & CodeClass::word) != 0; };
  for (const char32_t code : {U'a', U'ß', U'7', U'_', U'\u0301', U'\u0663', U'\u2167', U'\u24D0', U'\u200D', U'\uFE33',
                              U'\U00011BF0' /* a digit of Unicode 16.0 */}) {
    CAPTURE(static_cast<std::uint32_t>(code));
    CHECK(is_word(code));
  }
  for (const char32_t code : {U'-', U' ', U'\u00B2' /* superscript two */, U'\u00BD' /* one half */, U'\u2019',
                              U'\U0001D2C0' /* a number that is no digit */}) {
    CAPTURE(static_cast<std::uint32_t>(code));
    CHECK_FALSE(is_word(code));
  }
}

TEST_CASE("NFC composes, orders marks by class and keeps equal ones in order, as worked out by hand") {
  CHECK(nfc("e\xCC\x81") == "\xC3\xA9");                                 // e, acute
  CHECK(nfc("q\xCC\x87\xCC\xA3") == "q\xCC\xA3\xCC\x87");                // dot above after dot below
  CHECK(nfc("a\xCC\x87\xCC\x81") == "\xC8\xA7\xCC\x81");                 // both above: the first composes
  CHECK(nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8") == "\xEA\xB0\x81");  // Hangul
  CHECK(nfc("\xE2\x84\xAB") == "\xC3\x85");                              // the Angstrom sign
  CHECK(nfc("\xE0\xA4\x95\xE0\xA4\xBC") == "\xE0\xA4\x95\xE0\xA4\xBC");  // excluded from composition
  CHECK(nfc("\xE0\xA5\x98") == "\xE0\xA4\x95\xE0\xA4\xBC");
  CHECK(nfc("") == "");
  CHECK(nfc("\xCC\x81") == "\xCC\x81");
}

TEST_CASE("NFC leaves alone what came after Unicode 9.0, and what it separates") {
  const std::string vithkuqi = "\xF0\x90\x97\x92\xCC\x87";  // U+105D2 U+0307 are U+105C9 since Unicode 16.0
  CHECK(nfc(vithkuqi) == vithkuqi);
  const std::string marks = "a\xE0\xA2\x98\xCC\xA3\xCC\x81";  // U+0898, of class 230 since Unicode 14.0
  CHECK(nfc(marks) == marks);
}

/// NFC as utf8proc does it, for texts without inert code points.
std::string plain_nfc(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  std::string normal(reinterpret_cast<const char*>(out), static_cast<std::size_t>(n));
  std::free(out);
  return normal;
}

TEST_CASE("NFC is that of utf8proc for random texts without inert code points") {
  test::Random generator(11);
  std::vector<char32_t> codes = {U'a',   U'e',   U'q',   U' ',   0x1EA1, 0x1E69,  0x0F71, 0x0F72,
                                 0x0F74, 0x1100, 0x1161, 0x11A8, 0xAC00, 0x05D0,  0x05B0, 0x05B7,
                                 0x3099, 0x304B, 0x0915, 0x093C, 0x212B, 0x1D15E, 0x2ADC};
  for (char32_t code = 0x300; code < 0x370; ++code) codes.push_back(code);
  int n_changed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t i = 0, n = generator.below(12); i < n; ++i)
      append_utf8(codes[generator.below(codes.size())], text);
    CAPTURE(round, text);
    const std::string normal = nfc(text);
    REQUIRE(normal == plain_nfc(text));
    REQUIRE(nfc(normal) == normal);
    n_changed += normal == text ? 0 : 1;
  }
  CHECK(n_changed > 5000);
}

TEST_CASE("base64 is read as RFC 4648 gives it, and nothing else is") {
  const std::vector<std::pair<std::string, std::string>> cases = {{"", ""},
                                                                  {"Zg==", "f"},
                                                                  {"Zm8=", "fo"},
                                                                  {"Zm9v", "foo"},
                                                                  {"Zm9vYg==", "foob"},
                                                                  {"Zm9vYmE=", "fooba"},
                                                                  {"Zm9vYmFy", "foobar"},
                                                                  {"+/8=", "\xFB\xFF"}};
  for (const auto& [text, bytes] : cases) CHECK(decode_base64(text) == bytes);
  for (const std::string text :
       {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "=", "====", "Z===", "Zg==Zg==", "Zm 9v", "Zm9v\n", "-_8="}) {
    CAPTURE(text);
    CHECK_FALSE(decode_base64(text).has_value());
  }
}

}  // namespace
}  // namespace kalibri::text

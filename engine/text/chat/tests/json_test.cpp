// Reading JSON strictly, and writing it as Python does. The expected texts are those of CPython 3.11's json.dumps.
#include "engine/text/chat/json.hpp"

#include <string>

#include "fixtures/catch.hpp"

namespace kalibri::chat {
namespace {

std::string rewritten(const std::string& text) {
  const std::optional<Json> value = parse_json(text);
  return value ? to_text(*value) : "refused";
}

TEST_CASE("numbers are written as Python writes them") {
  const auto [given, expected] = GENERATE(table<std::string, std::string>({
      {"1.0", "1.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5e-7", "1.5e-07"},
      {"1e-100", "1e-100"},
      {"-0.0", "-0.0"},
      {"-0", "0"},
      {"-7", "-7"},
      {"0.1", "0.1"},
      {"2.50", "2.5"},
      {"100.0", "100.0"},
      {"123.456e2", "12345.6"},
      {"5e-324", "5e-324"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"0.000e999999999999999999999", "0.0"},
      {"1e-99999999999999999999", "0.0"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"9007199254740993", "9007199254740993"},
      {"123456789012345678901234567890123456789", "123456789012345678901234567890123456789"},
  }));
  CAPTURE(given);
  CHECK(rewritten(given) == expected);
}

TEST_CASE("a number beyond a double is valid JSON but out of range but an integer of any length is not") {
  for (const char* text : {"1e999", "-1e999", "[1, {\"a\": 1e999}]", "1e99999999999999999999"}) {
    CAPTURE(text);
    REQUIRE(parse_json(text));
    CHECK_FALSE(has_numbers_in_range(*parse_json(text)));
  }
  CHECK(has_numbers_in_range(*parse_json("[" + std::string(500, '9') + ", 1e308, 1e-999]")));
}

TEST_CASE("strings escape what must be escaped and nothing else") {
  CHECK(rewritten(R"("\u00e4\u2028\u007f\n\/<&'\ud83d\ude00")") == "\"ä\u2028\x7F\\n/<&'😀\"");
  CHECK(json_quoted(std::string("\"\\\n\r\t\b\f\x01\x1F\0", 10)) == R"("\"\\\n\r\t\b\f\u0001\u001f\u0000")");
}

TEST_CASE("what is quoted is JSON whatever the bytes") {
  CHECK(json_quoted("a\xC3\xA4\x92 \xF0\x9F\"\xED\xA0\x80") ==
        "\"a\xC3\xA4\uFFFD \uFFFD\uFFFD\\\"\uFFFD\uFFFD\uFFFD\"");
  for (int byte = 0; byte < 256; ++byte) CHECK(parse_json(json_quoted(std::string(1, static_cast<char>(byte)))));
}

TEST_CASE("keys keep their order and a repeated key its first place and last value") {
  CHECK(rewritten(R"({"b":1,"a":[ ],"b":{ },"":null})") == R"({"b": {}, "a": [], "": null})");
}

TEST_CASE("what is no strict JSON is refused") {
  const std::string text =
      GENERATE(as<std::string>{}, "", " ", "{", "[1,]", "{,}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "01", "1.",
               ".5", "+1", "-", "1e", "1e+", "0x1", "NaN", "Infinity", "tru", "nul", "'a'", "\"a", "\"\\", "\"\\u12",
               "\"\\u12g4\"", "\"\\u-123\"", "\"\\x\"", "\"\n\"", "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\udc00\"",
               "\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xC3\"", "1 2", "[1] x",
               "\xEF\xBB\xBF{}", "[1 2]", "{\"a\":1 \"b\":2}");
  CAPTURE(text);
  std::string error;
  CHECK_FALSE(parse_json(text, &error));
  CHECK(error.starts_with("byte "));
}

TEST_CASE("nesting is bounded whatever closes it") {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(parse_json(nested(kMaxJsonDepth)));
  CHECK_FALSE(parse_json(nested(kMaxJsonDepth + 1)));
  CHECK_FALSE(parse_json(std::string(1 << 20, '[')));
  std::string error;
  parse_json(nested(65), &error);
  CHECK(error == "byte 64: nested too deep");
}

TEST_CASE("a value knows where it stood") {
  const std::string text = R"( {"a": [1, 2] , "b": "x"} )";
  const Json value = parse_json(text).value();
  const Json& a = *value.find("a");
  CHECK(text.substr(a.begin, a.end - a.begin) == "[1, 2]");
  CHECK(text.substr(value.begin, value.end - value.begin) == R"({"a": [1, 2] , "b": "x"})");
}

TEST_CASE("values are equal by meaning and not by spelling") {
  const auto same = [](const char* a, const char* b) { return equal(parse_json(a).value(), parse_json(b).value()); };
  CHECK(same("3", "3.0"));
  CHECK(same(R"({"a":1,"b":[true]})", R"({"b":[true],"a":1e0})"));
  CHECK_FALSE(same("1", "true"));
  CHECK_FALSE(same("[1]", "[1,2]"));
  CHECK_FALSE(same(R"({"a":1})", R"({"b":1})"));
  CHECK_FALSE(same("\"3\"", "3"));
  CHECK_FALSE(same("null", "false"));
}

}  // namespace
}  // namespace kalibri::chat

// Replies made of random bytes and of the markers in random order: read without a fault, and the same however cut.
#include <array>
#include <string>

#include "engine/text/chat/tests/check_reply.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::chat {
namespace {

constexpr std::array<std::string_view, 44> kParts = {"<think>",
                                                     "</think>",
                                                     "<tool_call>",
                                                     "</tool_call>",
                                                     "<function=f>",
                                                     "<function=",
                                                     "</function>",
                                                     "<parameter=i>",
                                                     "<parameter=o>",
                                                     "<parameter=",
                                                     "</parameter>",
                                                     ">",
                                                     "<",
                                                     "\n",
                                                     "\n",
                                                     "\r\n",
                                                     " ",
                                                     "\t",
                                                     "{",
                                                     "}",
                                                     "[",
                                                     "]",
                                                     "\"",
                                                     "\\",
                                                     "\\\"",
                                                     ":",
                                                     ",",
                                                     "\"name\"",
                                                     "\"f\"",
                                                     "\"arguments\"",
                                                     "{\"name\": \"f\", \"arguments\": {",
                                                     "}}",
                                                     "null",
                                                     "true",
                                                     "1.0",
                                                     "-7",
                                                     "1e999",
                                                     "a",
                                                     "</",
                                                     "<t",
                                                     "\xC3\xA4",
                                                     "\xF0\x9F",
                                                     "\xFF",
                                                     "\\ud83d"};

TEST_CASE("replies of markers in random order are the same however they are cut") {
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    std::string text;
    const std::uint64_t n_parts = 1 + fixtures::random_word(seed, 0) % 40;
    for (std::uint64_t i = 1; i <= n_parts; ++i) text += kParts[fixtures::random_word(seed, i) % kParts.size()];
    CAPTURE(seed, text);
    REQUIRE_NOTHROW(check_reply(text, seed));
  }
}

TEST_CASE("a call's arguments are JSON though its names and values are no UTF-8") {
  const std::string call =
      "<tool_call>\n<function=f>\n<parameter=i>\n\x92\n</parameter>\n<parameter=\xFF>\xC3</parameter>\n</function>\n</"
      "tool_call>";
  REQUIRE_NOTHROW(check_reply(call, 1));
}

TEST_CASE("replies of random bytes are the same however they are cut") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < fixtures::random_word(~seed, 0) % 200; ++i) {
      text += static_cast<char>(fixtures::random_word(~seed, i + 1) & 0xFF);
    }
    CAPTURE(seed);
    REQUIRE_NOTHROW(check_reply(text, seed));
  }
}

}  // namespace
}  // namespace kalibri::chat

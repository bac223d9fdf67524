// Texts for which a careless step would take quadratic time: hours here, where the limit of a test is minutes.
#include "engine/text/tests/golden.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::text::test {
namespace {

TEST_CASE("a mebibyte of one character, of spaces, marks, digits or ill-formed bytes is encoded and comes back") {
  const std::vector<std::string> units = {"a",
                                          " ",
                                          "\n",
                                          "\r\n",
                                          "\t",
                                          "7",
                                          "<",
                                          "'",
                                          "<|",
                                          "!?",
                                          "\xFF",
                                          "\xCC\x81",
                                          "\xCC\x81\xCC\xA3",
                                          "\xF0\x9F\x98\x80"};
  for (const std::string name : kTokenizers) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    for (const std::string& unit : units) {
      std::string text = "x";
      while (text.size() < (1 << 20)) text += unit;
      text += " x";
      CAPTURE(name, unit);
      const std::string back = tokenizer.decode(tokenizer.encode(text), false);
      const std::size_t prefix = name == std::string("features_mini") ? 1 : 0;
      if (unit == "\xFF") {
        CHECK(back.substr(prefix) == to_utf8(text));
      } else if (unit == "\xCC\x81\xCC\xA3") {
        CHECK(back.size() == text.size() + prefix);  // in another order where the tokenizer normalises
      } else {
        CHECK(back.substr(prefix) == text);
      }
    }
  }
}

}  // namespace
}  // namespace kalibri::text::test

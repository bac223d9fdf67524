// Ids, texts and pieces as Hugging Face tokenizers 0.22.2 gives them, for three tokenizers; and its tables of Unicode.
#include <algorithm>

#include "engine/text/split.hpp"
#include "engine/text/tests/golden.hpp"
#include "engine/text/unicode.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/tests/sha256.hpp"

namespace kalibri::text::test {
namespace {

using fixtures::sha256;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

/// Whether `ids` are those of cases.json: a list, or of a long one its length, its digest and its ends.
bool are_expected(const Ids& ids, const json& expected) {
  if (expected.is_array()) return ids == expected.get<Ids>();
  const Ids head = expected.at("head");
  const Ids tail = expected.at("tail");
  if (ids.size() != expected.at("n").get<std::size_t>() || ids.size() < head.size() + tail.size()) return false;
  std::string joined;
  for (const std::int32_t id : ids) joined += (joined.empty() ? "" : ",") + std::to_string(id);
  return std::equal(head.begin(), head.end(), ids.begin()) && std::equal(tail.rbegin(), tail.rend(), ids.rbegin()) &&
         sha256(joined) == expected.at("sha256").get<std::string>();
}

TEST_CASE("every golden text has its golden ids with each of the three tokenizers") {
  const json cases = golden_json("cases.json").at("cases");
  REQUIRE(cases.size() == 293);
  for (const std::string name : kTokenizers) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    for (const json& entry : cases) {
      const std::string text = text_of(entry);
      CAPTURE(name, entry.at("name"));
      CHECK(are_expected(tokenizer.encode(text), entry.at("ids").at(name)));
      if (entry.contains("text_after_replacement")) {
        CHECK(to_utf8(text) == entry.at("text_after_replacement").get<std::string>());
      }
    }
  }
}

TEST_CASE("a comparison with golden ids fails for other ids") {
  CHECK(are_expected({1, 2}, json::array({1, 2})));
  CHECK_FALSE(are_expected({1, 3}, json::array({1, 2})));
  const json digest = {{"n", 3}, {"sha256", sha256("4,5,6")}, {"head", {4}}, {"tail", {6}}};
  CHECK(are_expected({4, 5, 6}, digest));
  CHECK_FALSE(are_expected({4, 7, 6}, digest));
  CHECK_FALSE(are_expected({4, 5, 7}, digest));
  CHECK_FALSE(are_expected({4, 5}, digest));
}

TEST_CASE("ids decode to the golden text, at once and as a stream, with special tokens and without") {
  const json cases = golden_json("decode.json").at("cases");
  REQUIRE(cases.size() == 52);
  for (const std::string name : kTokenizers) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    for (const json& entry : cases) {
      if (entry.at("tokenizer") != name) continue;
      const Ids ids = entry.at("ids");
      for (const bool skip_special : {false, true}) {
        CAPTURE(name, entry.at("name"), skip_special);
        const json& expected = entry.at(skip_special ? "skip_special" : "keep_special");
        CHECK(tokenizer.decode(ids, skip_special) == expected.at("text").get<std::string>());
        std::vector<std::string> stream;
        StreamDecoder decoder(tokenizer, skip_special);
        for (const std::int32_t id : ids) stream.push_back(decoder.feed(id));
        stream.push_back(decoder.flush());
        CHECK(stream == expected.at("stream").get<std::vector<std::string>>());
      }
    }
  }
}

std::vector<std::string> pieces_of(SplitPattern pattern, const std::string& text) {
  std::vector<std::string> pieces;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t end = piece_end(pattern, text, pos);
    pieces.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  return pieces;
}

TEST_CASE("every golden text is cut into its golden pieces by both patterns") {
  const json cases = golden_json("pretok.json").at("cases");
  REQUIRE(cases.size() == 165);
  for (const json& entry : cases) {
    const json& pieces = entry.at("pieces");
    const auto expected = [&](const std::string& name) -> std::vector<std::string> {
      return pieces.contains(name) ? pieces.at(name) : pieces.at("all");
    };
    const std::string text = entry.at("text");
    CAPTURE(entry.at("name"));
    CHECK(pieces_of(SplitPattern::letters, text) == expected("kolibri1"));
    CHECK(pieces_of(SplitPattern::letters_and_marks, text) == expected("qwen38"));
  }
}

TEST_CASE("letters, marks, numbers and spaces are those of Unicode 16.0, and 193 code points are inert in NFC") {
  const json tables = golden_json("unicode_tables.json");
  std::vector<std::uint8_t> expected(0x110000);
  const auto set = [&](const char* table, std::uint8_t bit) {
    for (const json& range : tables.at(table)) {
      for (std::size_t code = range.at(0); code <= range.at(1).get<std::size_t>(); ++code) expected[code] |= bit;
    }
  };
  set("L", CodeClass::letter);
  set("M", CodeClass::mark);
  set("N", CodeClass::number);
  set("White_Space", CodeClass::space);
  REQUIRE(tables.at("nfc9_inert").size() == 193);
  for (const std::size_t code : tables.at("nfc9_inert")) expected[code] |= CodeClass::inert;

  std::vector<std::size_t> wrong;
  std::size_t n_letters = 0;
  for (std::size_t code = 0; code < expected.size(); ++code) {
    const auto found = static_cast<std::uint8_t>(code_classes()[code] & ~CodeClass::word);
    if (found != expected[code]) wrong.push_back(code);
    n_letters += (found & CodeClass::letter) != 0 ? 1 : 0;
  }
  CHECK(wrong == std::vector<std::size_t>{});
  CHECK(n_letters == 141028);
}

}  // namespace
}  // namespace kalibri::text::test

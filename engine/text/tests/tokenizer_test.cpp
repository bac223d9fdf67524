// The tokenizer beyond golden data: against the plain definition of BPE, on long texts, and what a user asks of it.
#include "engine/text/tokenizer.hpp"

#include <algorithm>
#include <map>

#include "engine/text/symbols.hpp"
#include "engine/text/tests/golden.hpp"
#include "engine/text/tests/random.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::text::test {
namespace {

using Ids = std::vector<std::int32_t>;

/// As it is defined: the pair of lowest rank is merged, the leftmost among equals, until there is none.
std::vector<std::string> plain_bpe(const std::vector<std::pair<std::string, std::string>>& merges,
                                   std::vector<std::string> symbols) {
  for (;;) {
    std::size_t best_rank = merges.size();
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto merge = std::ranges::find(merges, std::pair(symbols[i], symbols[i + 1]));
      const auto rank = static_cast<std::size_t>(merge - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

/// A vocabulary of all bytes and of random merges of the letters a, b and c.
TokenizerFile random_merges(Random& random) {
  TokenizerFile file;
  for (int byte = 0; byte < 256; ++byte) file.vocab.emplace(byte_symbol(static_cast<unsigned char>(byte)), byte);
  std::vector<std::string> entries = {"a", "b", "c"};
  for (int i = 0; i < 30; ++i) {
    const std::string left = entries[random.below(entries.size())];
    const std::string right = entries[random.below(entries.size())];
    if (std::ranges::find(file.merges, std::pair(left, right)) != file.merges.end()) continue;
    file.merges.emplace_back(left, right);
    if (file.vocab.emplace(left + right, static_cast<std::int32_t>(file.vocab.size())).second) {
      entries.push_back(left + right);
    }
  }
  return file;
}

TEST_CASE("BPE merges what its definition merges, for random merges and texts") {
  Random random(5);
  int n_merged = 0;
  for (int round = 0; round < 300; ++round) {
    const TokenizerFile file = random_merges(random);
    const Bpe bpe(file, "random");
    Bpe::Scratch scratch;
    for (int i = 0; i < 20; ++i) {
      std::string text;
      std::vector<std::string> letters;
      for (std::size_t n = random.below(40); n > 0; --n) letters.emplace_back(1, "abcd"[random.below(4)]);
      for (const std::string& letter : letters) text += letter;
      Ids expected;
      for (const std::string& symbol : plain_bpe(file.merges, letters)) expected.push_back(file.vocab.at(symbol));
      Ids ids;
      bpe.encode(text, scratch, ids);
      CAPTURE(round, text);
      REQUIRE(ids == expected);
      n_merged += ids.size() < text.size() ? 1 : 0;
    }
  }
  CHECK(n_merged > 3000);
}

TEST_CASE("equal pairs are merged from the left") {
  TokenizerFile file;
  for (int byte = 0; byte < 256; ++byte) file.vocab.emplace(byte_symbol(static_cast<unsigned char>(byte)), byte);
  file.vocab.emplace("aa", 256);
  file.merges = {{"a", "a"}};
  Bpe::Scratch scratch;
  Ids ids;
  Bpe(file, "test").encode("aaaaa", scratch, ids);
  CHECK(ids == Ids{256, 256, 'a'});
}

TEST_CASE("every byte sequence that is UTF-8 comes back from its ids, unless it is normalised") {
  const Tokenizer tokenizer = golden_tokenizer("kolibri1_mini");
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t n = random.below(30); n > 0; --n) {
      const std::size_t limit = std::size_t{1} << (4 + random.below(17));
      const std::size_t code = random.below(std::min<std::size_t>(limit, 0x110000));
      if (code < 0xD800 || code > 0xDFFF) append_utf8(static_cast<char32_t>(code), text);
    }
    CAPTURE(round, text);
    REQUIRE(tokenizer.decode(tokenizer.encode(text), false) == text);
  }
}

TEST_CASE("text that reads like an added token becomes it, or with AddedTokens::ignore stays text") {
  const Tokenizer tokenizer = golden_tokenizer("qwen38_mini");
  CHECK(tokenizer.encode("a<|im_end|>") == Ids{64, 2258});
  const Ids plain = tokenizer.encode("a<|im_end|></think>", AddedTokens::ignore);
  CHECK(std::ranges::all_of(plain, [](std::int32_t id) { return id < 2256; }));
  CHECK(tokenizer.decode(plain, true) == "a<|im_end|></think>");
}

TEST_CASE("ids are looked up by their bytes, and unassigned ones have none") {
  const Tokenizer tokenizer = golden_tokenizer("kolibri1_mini");
  CHECK(tokenizer.bytes_of('a') == "a");
  CHECK(tokenizer.bytes_of(0xC3) == "\xC3");
  CHECK(tokenizer.bytes_of(2262) == "<|im_end|>");
  CHECK(tokenizer.id_of("<|im_end|>") == 2262);
  CHECK(tokenizer.id_of(" ") == ' ');
  CHECK(tokenizer.id_of("\xC3") == 0xC3);
  CHECK_FALSE(tokenizer.id_of("no such token").has_value());
  CHECK(tokenizer.is_special(2262));
  CHECK_FALSE(tokenizer.is_special(*tokenizer.id_of("</think>")));
  CHECK_FALSE(tokenizer.is_special('a'));
  CHECK(tokenizer.n_ids() == 2276);
  CHECK(tokenizer.n_tokens() == 2276);
  for (const std::int32_t id : {-1, 2276, INT32_MAX, INT32_MIN}) {
    CHECK(tokenizer.bytes_of(id).empty());
    CHECK_FALSE(tokenizer.is_special(id));
    CHECK(tokenizer.decode(Ids{'a', id, 'b'}, false) == "ab");
  }
}

TEST_CASE("added tokens are numbered on from the vocabulary, and a note says where the file differs") {
  const Tokenizer tokenizer = golden_tokenizer("kolibri1_mini");
  CHECK(tokenizer.id_of("<|reserved-token-2|>") == 2271);
  REQUIRE(tokenizer.notes().size() == 1);
  CHECK_THAT(tokenizer.notes().front(), Catch::Matchers::ContainsSubstring("'<|reserved-token-2|>' is 2271, not 2273"));
  CHECK(golden_tokenizer("qwen38_mini").notes().empty());
}

TEST_CASE("a text of more than 64 MiB is refused") {
  const Tokenizer tokenizer = golden_tokenizer("kolibri1_mini");
  const std::string text(Tokenizer::kMaxTextBytes + 1, ' ');
  CHECK_THROWS_WITH(tokenizer.encode(text), Catch::Matchers::ContainsSubstring("expected at most 67108864"));
}

}  // namespace
}  // namespace kalibri::text::test

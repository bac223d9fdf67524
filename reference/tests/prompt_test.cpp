// Token files: what is read, and what is refused with the prompt named.
#include "reference/prompt.hpp"

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;

std::vector<Prompt> read(const std::string& text) {
  const fixtures::TempDirectory folder;
  fixtures::write_file(folder.path() / "tokens.json", text);
  return read_prompts(folder.path() / "tokens.json", /*vocab_size=*/10, /*max_tokens=*/4);
}

TEST_CASE("prompts lie one after the other") {
  const std::vector<Prompt> prompts = read(R"({"a": [0, 9], "b": [1, 2, 3, 4], "c": [5]})");
  REQUIRE(prompts.size() == 3);
  CHECK(prompts[0].tokens == std::vector<std::int32_t>{0, 9});
  CHECK(prompts[1].first_row == 2);
  CHECK(prompts[1].end_row() == 6);
  CHECK(prompts[2].first_row == 6);
  CHECK(count_rows(prompts) == 7);
}

TEST_CASE("a prompt's text is named by its SHA-256, beside its ids") {
  const std::string hash(64, 'a');
  const std::vector<Prompt> prompts =
      read(R"({"a": [0, 9], "b": {"tokens": [1, 2], "text_sha256": ")" + hash + R"("}})");
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0].text_sha256.empty());
  CHECK(prompts[1].tokens == std::vector<std::int32_t>{1, 2});
  CHECK(prompts[1].text_sha256 == hash);
  CHECK(prompts[1].first_row == 2);
  CHECK_THROWS_WITH(read(R"({"b": {"tokens": [1, 2]}})"),
                    ContainsSubstring("prompt 'b': is {\"tokens\":[1,2]}, expected"));
  CHECK_THROWS_WITH(read(R"({"b": {"tokens": [1], "text_sha256": "aB"}})"),
                    ContainsSubstring("prompt 'b': text_sha256 is \"aB\", expected 64"));
  CHECK_THROWS_WITH(read(R"({"b": {"tokens": 1, "text_sha256": ")" + hash + R"("}})"),
                    ContainsSubstring("prompt 'b': is 1, expected a list"));
}

TEST_CASE("a token file that cannot be run is refused") {
  CHECK_THROWS_WITH(read(""), ContainsSubstring("tokens.json: is no valid JSON"));
  CHECK_THROWS_WITH(read("{}"), ContainsSubstring("expected prompts"));
  CHECK_THROWS_WITH(read("[1]"), ContainsSubstring("expected prompts"));
  CHECK_THROWS_WITH(read(R"({"a": 1})"), ContainsSubstring("prompt 'a': is 1"));
  CHECK_THROWS_WITH(read(R"({"a": []})"), ContainsSubstring("prompt 'a': is empty"));
  CHECK_THROWS_WITH(read(R"({"a": [1], "b": [1, 10]})"), ContainsSubstring("prompt 'b': entry 1 is 10"));
  CHECK_THROWS_WITH(read(R"({"a": [-1]})"), ContainsSubstring("entry 0 is -1"));
  CHECK_THROWS_WITH(read(R"({"a": [1.0]})"), ContainsSubstring("entry 0 is 1.0"));
  CHECK_THROWS_WITH(read(R"({"a": [18446744073709551615]})"), ContainsSubstring("entry 0 is"));
  CHECK_THROWS_WITH(read(R"({"a": [1, 1, 1, 1, 1]})"),
                    ContainsSubstring("5 tokens, but config.json's max_position_embeddings is 4"));
  CHECK_THROWS_WITH(read(R"({"a": [1], "a": [2]})"), ContainsSubstring("key \"a\" occurs twice"));
  CHECK_THROWS_WITH(read(R"({"": [1]})"), ContainsSubstring("a name is not empty"));
  CHECK_THROWS_WITH(read(R"({"a/b": [1]})"), ContainsSubstring("a name is not empty"));
  CHECK_THROWS_WITH(read_prompts("nowhere.json", 10, 4), ContainsSubstring("nowhere.json: cannot be opened"));
}

}  // namespace
}  // namespace kalibri::reference::test

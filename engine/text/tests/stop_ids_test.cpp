// Where a generation ends, from whichever file says so.
#include "engine/text/stop_ids.hpp"

#include "engine/base/error.hpp"
#include "engine/text/tests/golden.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::text::test {
namespace {

using Ids = std::vector<std::int32_t>;

/// Stop ids of a directory with these two files; a file whose text is empty is not there.
Ids stop_ids_of(const std::string& generation_config, const std::string& tokenizer_config) {
  const fixtures::TempDirectory directory;
  const auto write = [&](const char* name, const std::string& text) {
    if (!text.empty()) fixtures::write_file(directory.path() / name, text);
  };
  write("generation_config.json", generation_config);
  write("tokenizer_config.json", tokenizer_config);
  static const Tokenizer tokenizer = golden_tokenizer("qwen38_mini");
  return stop_ids(directory.path(), tokenizer);
}

TEST_CASE("stop ids are those of generation_config.json, or else the eos_token of tokenizer_config.json") {
  const std::string token = R"({"eos_token": "<|im_end|>"})";
  CHECK(stop_ids_of(R"({"eos_token_id": 2256})", token) == Ids{2256});
  CHECK(stop_ids_of(R"({"eos_token_id": [2258, 2256, 2258]})", token) == Ids{2258, 2256});
  CHECK(stop_ids_of(R"({"eos_token_id": null})", token) == Ids{2258});
  CHECK(stop_ids_of(R"({"eos_token_id": []})", token) == Ids{2258});
  CHECK(stop_ids_of("", token) == Ids{2258});
  CHECK(stop_ids_of("", R"({"eos_token": {"content": "<|endoftext|>"}})") == Ids{2256});
}

TEST_CASE("stop ids that are not there, or that the tokenizer does not know, are refused with the file's name") {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"", "", "nothing says where a text ends"},
      {"{}", "{}", "nothing says where a text ends"},
      {R"({"eos_token_id": 2282})", "", "generation_config.json: eos_token_id: found 2282"},
      {R"({"eos_token_id": -1})", "", "generation_config.json: eos_token_id: found -1"},
      {R"({"eos_token_id": "2256"})", "", "generation_config.json: eos_token_id: found \"2256\""},
      {R"({"eos_token_id": [[1]]})", "", "generation_config.json: eos_token_id: found [1]"},
      {"[1]", "", "generation_config.json: no JSON object"},
      {"{", "", "generation_config.json: no valid JSON"},
      {std::string(100, '['), "", "generation_config.json: nested deeper"},
      {"", R"({"eos_token": "</s>"})", "tokenizer_config.json: eos_token: found \"</s>\""},
      {"", R"({"eos_token": 3})", "tokenizer_config.json: eos_token: found 3"},
  };
  for (const auto& [generation, tokenizer, what] : cases) {
    CAPTURE(generation, tokenizer);
    CHECK_THROWS_WITH(stop_ids_of(generation, tokenizer), Catch::Matchers::ContainsSubstring(what));
    CHECK_THROWS_AS(stop_ids_of(generation, tokenizer), Error);
  }
}

}  // namespace
}  // namespace kalibri::text::test

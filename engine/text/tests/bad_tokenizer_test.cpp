// Files that are no tokenizer, or one that would be tokenised otherwise than here: each is refused by name.
#include <functional>

#include "engine/base/error.hpp"
#include "engine/text/tests/golden.hpp"
#include "engine/text/tests/random.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::text::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

Tokenizer parse(const std::string& text) { return Tokenizer::parse(std::as_bytes(std::span(text)), "a.json"); }

/// A small file that is accepted: all bytes, the merges "ab" and "abc", the pattern of Qwen 3.8.
json good() {
  const json golden = golden_json("tokenizer_qwen38_mini.json");
  json file = golden;
  json vocab = json::object();
  for (const auto& [symbols, id] : golden["model"]["vocab"].items()) {
    if (id.get<int>() < 256) vocab[symbols] = id;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  file["model"]["vocab"] = vocab;
  file["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  file["added_tokens"] = json::array({golden["added_tokens"][0]});
  file["added_tokens"][0]["id"] = 258;
  return file;
}

TEST_CASE("the small file is accepted, with merges in either form") {
  json file = good();
  CHECK(parse(file.dump()).encode("abcab<|endoftext|>") == std::vector<std::int32_t>{257, 256, 258});
  file["model"]["merges"] = json::array({"a b", "ab c"});
  CHECK(parse(file.dump()).encode("abcab") == std::vector<std::int32_t>{257, 256});
}

TEST_CASE("a member that would change ids, or is of the wrong kind, is refused by its name") {
  struct Case {
    std::string pointer;
    json value;  // discarded: the member is taken away
    std::string what;
  };
  const json gone(json::value_t::discarded);
  const json wordpiece = {{"type", "WordPiece"}};
  const json split = good()["pre_tokenizer"]["pretokenizers"][0];
  const json byte_level = good()["pre_tokenizer"]["pretokenizers"][1];
  const std::vector<Case> cases = {
      {"", json::array(), "model.vocab: missing"},
      {"", nullptr, "model.vocab: missing"},
      {"/model", gone, "model.vocab: missing"},
      {"/model", json::array({1}), "model.vocab: missing"},
      {"/model/type", gone, "model.type: found null, expected \"BPE\""},
      {"/model/type", "Unigram", "model.type: found \"Unigram\""},
      {"/model/vocab", gone, "model.vocab: missing"},
      {"/model/vocab", json::array({"a"}), "model.vocab: missing"},
      {"/model/vocab/ab", -1, "model.vocab: entry 'ab': expected an id"},
      {"/model/vocab/ab", (1 << 24) + 1, "model.vocab: entry 'ab': expected an id"},
      {"/model/vocab/ab", 256.0, "model.vocab: entry 'ab': expected an id"},
      {"/model/vocab/ab", "256", "model.vocab: entry 'ab': expected an id"},
      {"/model/vocab/ab", json::object(), "model.vocab: entry 'ab': expected an id"},
      {"/model/vocab/ab", json::array(), "model.vocab: entry 'ab': expected an id"},
      {"/model/vocab/ab", 257, "id 257 is that of"},
      {"/model/vocab/ab", gone, "model.merges: entry 0: 'ab' has no entry"},
      {"/model/vocab/c", gone, "the symbol of byte 99: 'c' has no entry"},
      {"/model/merges", gone, "model.merges: missing"},
      {"/model/merges", json::object(), "model.merges: missing"},
      {"/model/merges/0", json::array({"a"}), "model.merges: entry 0 is no pair"},
      {"/model/merges/1", json::array({"a", "b", "c"}), "model.merges: entry 1 is no pair"},
      {"/model/merges/1", json::array({"a", 1}), "model.merges: entry 1 is no pair"},
      {"/model/merges/1", json::array({json::array({"a", "b"})}), "model.merges: entry 1 is no pair"},
      {"/model/merges/1", "abc", "model.merges: entry 1 is no pair"},
      {"/model/merges/1", "a b c", "model.merges: entry 1 is no pair"},
      {"/model/merges/1", 1, "model.merges: entry 1 is no pair"},
      {"/model/merges/1", json::object(), "model.merges: entry 1 is no pair"},
      {"/model/merges/1", json::array({"ab", "zz"}), "model.merges: entry 1: 'zz' has no entry"},
      {"/model/dropout", 0.1, "model.dropout: found 0.1, expected null or 0.0"},
      {"/model/unk_token", "<unk>", "model.unk_token: found \"<unk>\", expected null"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/byte_fallback", 1, "model.byte_fallback: found 1, expected true or false"},
      {"/model/ignore_merges", "no", "model.ignore_merges"},
      {"/added_tokens", json::object(), "added_tokens: found {}, expected a list"},
      {"/added_tokens/0", 1, "added_tokens[0]: found 1, expected an object"},
      {"/added_tokens/0/content", gone, "added_tokens[0].content: found null, expected a string"},
      {"/added_tokens/0/special", gone, "added_tokens[0].special: found null, expected true or false"},
      {"/added_tokens/0/lstrip", 1, "added_tokens[0].lstrip: found 1"},
      {"/added_tokens/1", good()["added_tokens"][0], "added_tokens: '<|endoftext|>' is given twice"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer.type: found \"NFKC\""},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}, "normalizers[0].type"},
      {"/normalizer", "NFC", "normalizer: found \"NFC\", expected an object"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer: found null, expected a ByteLevel stage"},
      {"/pre_tokenizer", split, "expected a ByteLevel stage"},
      {"/pre_tokenizer/pretokenizers", json::array({byte_level, split}),
       "pretokenizers[1].type: found \"Split\", expected nothing"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits", "pretokenizers[0].type: found \"Digits\""},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "pretokenizers[0].behavior: found \"Removed\""},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "pretokenizers[0].invert: found true"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern.Regex: found null, expected a string"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "pattern.Regex: found"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", gone, "pretokenizers[1].add_prefix_space"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "post_processor.type: found \"TemplateProcessing\""},
      {"/decoder", nullptr, "decoder: found null, expected ByteLevel"},
      {"/decoder", wordpiece, "decoder.type: found \"WordPiece\""},
      {"/truncation", {{"max_length", 8}}, "truncation: found {\"max_length\":8}, expected null"},
      {"/padding", json::object(), "padding: found {}, expected null"},
  };
  for (const Case& each : cases) {
    json file = good();
    const json::json_pointer pointer(each.pointer);
    if (!each.value.is_discarded()) {
      file[pointer] = each.value;
    } else {
      file[pointer.parent_pointer()].erase(pointer.back());
    }
    CAPTURE(each.pointer, each.value);
    CHECK_THROWS_WITH(parse(file.dump()), ContainsSubstring("a.json: ") && ContainsSubstring(each.what));
    CHECK_THROWS_AS(parse(file.dump()), Error);
  }
}

std::string with(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

TEST_CASE("a key given twice, deep nesting, no JSON and no UTF-8 are refused") {
  const std::string text = good().dump();
  const std::string deep(100, '[');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {with(text, "\"ab\":256", "\"ab\":256,\"ab\":258"), "key 'ab' is given twice"},
      {with(text, "\"dropout\":", "\"dropout\":null,\"dropout\":"), "key 'dropout' is given twice"},
      {with(text, "\"merges\":", "\"merges\":[],\"merges\":"), "key 'merges' is given twice"},
      {with(text, "\"vocab\":", "\"vocab\":{},\"vocab\":"), "key 'vocab' is given twice"},
      {with(text, "\"model\":", "\"model\":{},\"model\":"), "key 'model' is given twice"},
      {with(text, "\"dropout\":null", "\"dropout\":" + deep), "nested deeper than 32"},
      {with(text, "\"dropout\":null", "\"dropout\":1e999"), "no valid JSON"},
      {with(text, "\"ab\":256", "\"\\ud800\":256"), "no valid JSON"},
      {with(text, "\"ab\":256", "\"\xC3\":256"), "no valid JSON"},
      {text + "{}", "no valid JSON"},
      {"", "no valid JSON"},
      {std::string("\0\0\0", 3), "no valid JSON"},
  };
  for (const auto& [bad, what] : cases) {
    CAPTURE(what);
    CHECK_THROWS_WITH(parse(bad), ContainsSubstring("a.json: ") && ContainsSubstring(what));
  }
}

TEST_CASE("a file that is cut off is refused, wherever it is cut") {
  const std::string text = good().dump();
  for (std::size_t n = 0; n < text.size(); n += 1 + text.size() / 1000) {
    CAPTURE(n);
    CHECK_THROWS_AS(parse(text.substr(0, n)), Error);
  }
}

TEST_CASE("a file with random bytes changed is refused or accepted, and never worse") {
  const std::string text = good().dump();
  Random random(17);
  int n_refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string changed = text;
    for (std::size_t n = 1 + random.below(3); n > 0; --n) {
      changed[random.below(changed.size())] = static_cast<char>(random.below(256));
    }
    try {
      static_cast<void>(parse(changed).encode("abcab <|endoftext|> \xC3\xA4"));
    } catch (const Error&) {
      ++n_refused;
    }
  }
  CHECK(n_refused > 1000);
}

TEST_CASE("a directory without tokenizer.json, a missing file and one above 64 MiB are refused by name") {
  const fixtures::TempDirectory directory;
  CHECK_THROWS_WITH(Tokenizer::load(directory.path()), ContainsSubstring("tokenizer.json"));
  CHECK_THROWS_WITH(Tokenizer::load(directory.path() / "none.json"), ContainsSubstring("none.json"));
  const auto large = directory.path() / "large.json";
  fixtures::write_file(large, "{}");
  std::filesystem::resize_file(large, kMaxTokenizerBytes + 1);
  CHECK_THROWS_WITH(Tokenizer::load(large), ContainsSubstring("large.json: 67108865 bytes, expected at most"));
}

}  // namespace
}  // namespace kalibri::text::test

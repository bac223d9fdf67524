// `tokenize` as a person, and as a filter for another program, and what it refuses.
#include "engine/cli/tokenize_command.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::cli {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

const std::filesystem::path kProgram = std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri";

std::string golden(const std::string& name) {
  const auto set = fixtures::find_golden("tokenizer");
  if (!set.has_value()) throw std::runtime_error("fixtures/golden/tokenizer is missing");
  return (*set / name).string();
}

const std::string& qwen_mini() {
  static const std::string file = golden("tokenizer_qwen38_mini.json");
  return file;
}

fixtures::RunResult run(const std::vector<std::string>& arguments) {
  return fixtures::run_program(kProgram, arguments);
}

struct Outcome {
  std::string out;
  std::string notes;
};

Outcome filter(const std::string& lines, const std::string& tokenizer = qwen_mini()) {
  std::istringstream in(lines);
  std::ostringstream out;
  std::ostringstream notes;
  CHECK(tokenize_command({tokenizer, {}, true}, in, out, notes) == 0);
  return {out.str(), notes.str()};
}

TEST_CASE("tokenize writes the ids of each text on a line, for a file and for a directory") {
  const auto result = run({"tokenize", qwen_mini(), "Der Kolibri ist grün.", ""});
  CHECK(result.exit_status == 0);
  CHECK(result.out == "318 603 78 371 1947 1474 913 77 13\n\n");
  CHECK(result.err.empty());

  const fixtures::TempDirectory directory;
  std::filesystem::copy_file(qwen_mini(), directory.path() / "tokenizer.json");
  CHECK(run({"tokenize", directory.path().string(), " Der Garten"}).out == "1793 651\n");
}

TEST_CASE("tokenize takes any argument as a text: brackets, braces, a dash after --, bytes that are no UTF-8") {
  const std::vector<std::string> texts = {"[a,b]", "{}", "%%", "[]", "-x", "--jsonl", "\xC3"};
  std::string expected;
  for (const std::string& text : texts) {
    const json line = {{"text", text == "\xC3" ? "\xEF\xBF\xBD" : text}};
    const json answer = json::parse(filter(line.dump()).out);
    for (const json& id : answer.at("ids")) expected += id.dump() + " ";
    expected.back() = '\n';
  }
  std::vector<std::string> arguments = {"tokenize", qwen_mini(), "--"};
  arguments.insert(arguments.end(), texts.begin(), texts.end());
  CHECK(run(arguments).out == expected);
  const std::string first_line = expected.substr(0, expected.find('\n') + 1);
  CHECK(run({"tokenize", qwen_mini(), "[a,b]"}).out == first_line);
}

TEST_CASE("the filter answers each line with one line, in the agreed form") {
  const Outcome outcome = filter(
      "{\"text\": \" Der Garten\"}\n"
      "{\"bytes_b64\": \"IERlciBHYXJ0ZW4=\"}\n"
      "{\"decode\": [1793, 651, 2258], \"skip_special\": true}\n"
      "{\"decode\": [1793, 2258]}\n"
      "{\"decode\": [127], \"skip_special\": false}\n"
      "{\"text\": \"\"}");  // the last line may lack its end
  CHECK(outcome.out ==
        "{\"ids\":[1793,651]}\n"
        "{\"ids\":[1793,651]}\n"
        "{\"text\":\" Der Garten\",\"stream\":[\" Der\",\" Garten\",\"\",\"\"]}\n"
        "{\"text\":\" Der<|im_end|>\",\"stream\":[\" Der\",\"<|im_end|>\",\"\"]}\n"
        "{\"text\":\"\xEF\xBF\xBD\",\"stream\":[\"\",\"\xEF\xBF\xBD\"]}\n"
        "{\"ids\":[]}\n");
  CHECK(outcome.notes.empty());
  CHECK(filter("").out.empty());
}

TEST_CASE("the filter gives the golden ids of every golden text, as bytes or as text") {
  const json cases = json::parse(fixtures::read_file(golden("cases.json"))).at("cases");
  std::string lines;
  std::vector<std::string> expected;
  for (const json& entry : cases) {
    if (entry.contains("parts") || !entry.at("ids").at("kolibri1_mini").is_array()) continue;
    const char* const key = entry.contains("text") ? "text" : "bytes_b64";
    lines += json{{key, entry.at(key)}}.dump() + "\n";
    expected.push_back(json{{"ids", entry.at("ids").at("kolibri1_mini")}}.dump());
  }
  REQUIRE(expected.size() == 280);
  const Outcome outcome = filter(lines, golden("tokenizer_kolibri1_mini.json"));
  std::istringstream answers(outcome.out);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::string answer;
    std::getline(answers, answer);
    CAPTURE(i);
    CHECK(answer == expected[i]);
  }
  CHECK_THAT(outcome.notes, ContainsSubstring("'<|reserved-token-2|>' is 2271, not 2273"));
}

TEST_CASE("a line that is no request is refused with its number, after the answers to those before it") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "no valid JSON"},
      {"{\"text\": \"a\"", "no valid JSON"},
      {"{\"text\": \"\\ud800\"}", "no valid JSON"},
      {"{\"text\": \"\xC3\"}", "no valid JSON"},
      {"{\"text\": \"a\"} {}", "no valid JSON"},
      {"{\"decode\": [1e999]}", "no valid JSON"},
      {"[1]", "expected {\"text\""},
      {"\"text\"", "expected {\"text\""},
      {"null", "expected {\"text\""},
      {"{}", "expected {\"text\""},
      {"{\"text\": \"a\", \"decode\": [1]}", "expected {\"text\""},
      {"{\"text\": \"a\", \"skip_special\": true}", "expected {\"text\""},
      {"{\"text\": \"a\", \"more\": 1}", "expected {\"text\""},
      {"{\"text\": \"a\", \"text\": \"b\"}", "'text' is given twice"},
      {"{\"text\": 1}", "'text' is no string"},
      {"{\"bytes_b64\": \"YQ\"}", "no base64"},
      {"{\"bytes_b64\": \"Y!==\"}", "no base64"},
      {"{\"bytes_b64\": [97]}", "'bytes_b64' is no string"},
      {"{\"decode\": 1}", "no list of ids"},
      {"{\"decode\": [1, -1]}", "decode[1]: -1 is no token id"},
      {"{\"decode\": [2147483648]}", "decode[0]: 2147483648 is no token id"},
      {"{\"decode\": [1.0]}", "is no token id"},
      {"{\"decode\": [\"a\"]}", "is no token id"},
      {"{\"decode\": [[1]]}", "nested deeper"},
      {"{\"decode\": [1], \"skip_special\": 1}", "neither true nor false"},
  };
  for (const auto& [line, what] : bad) {
    CAPTURE(line);
    std::istringstream in("{\"text\": \"\"}\n" + line + "\n{\"text\": \"\"}\n");
    std::ostringstream out;
    CHECK_THROWS_WITH(tokenize_command({qwen_mini(), {}, true}, in, out, out),
                      ContainsSubstring("standard input, line 2: ") && ContainsSubstring(what));
    CHECK(out.str() == "{\"ids\":[]}\n");
  }
}

TEST_CASE("a line of more than 64 MiB is refused") {
  std::istringstream in(std::string((std::size_t{64} << 20) + 1, ' '));
  std::ostringstream out;
  CHECK_THROWS_WITH(tokenize_command({qwen_mini(), {}, true}, in, out, out),
                    ContainsSubstring("line 1: longer than 64 MiB"));
}

TEST_CASE("tokenize ends with 2 and says why for what it cannot use") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "bad.json",
                       "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}, \"merges\": []}}");
  const std::string bad = (directory.path() / "bad.json").string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"tokenize", qwen_mini()}, "expected texts, or --jsonl"},
      {{"tokenize", qwen_mini(), "a", "--jsonl"}, "expected texts, or --jsonl"},
      {{"tokenize", qwen_mini(), "--jsnl"}, "--jsnl"},
      {{"tokenize", directory.path().string(), "a"}, "tokenizer.json"},
      {{"tokenize", bad, "a"}, "bad.json: "},
      {{"tokenize"}, "required"},
  };
  for (const auto& [arguments, what] : cases) {
    CAPTURE(what);
    const auto result = run(arguments);
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring(what));
    CHECK(result.out.empty());
  }
}

}  // namespace
}  // namespace kalibri::cli

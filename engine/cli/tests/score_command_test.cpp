// `kalibri score`, from outside, against what the model says when it is asked directly.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/cli/tests/speaking_checkpoint.hpp"
#include "engine/model/session.hpp"
#include "engine/text/tokenizer.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/run_program.hpp"

namespace kalibri::cli::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::Family;
using nlohmann::json;

struct Answer {
  std::string text;
  std::vector<std::int32_t> ids;
};

/// What the model says greedily after `prompt`, in `n` tokens.
Answer greedy(const SpeakingCheckpoint& checkpoint, const std::string& prompt, int n) {
  const auto result = fixtures::run_program(std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri",
                                            {"generate", checkpoint.directory(), "-p", prompt, "-n", std::to_string(n),
                                             "--temperature", "0", "--ignore-eos", "--json"});
  REQUIRE(result.exit_status == 0);
  const json answer = json::parse(result.out).at("answers")[0];
  return {answer.at("text"), answer.at("ids")};
}

fixtures::RunResult score(const SpeakingCheckpoint& checkpoint, const std::string& lines,
                          std::vector<std::string> more = {}) {
  checkpoint.write("held-out.jsonl", lines);
  more.insert(more.begin(), {"score", checkpoint.directory(), "--prompts", checkpoint.directory() + "/held-out.jsonl"});
  return fixtures::run_program(std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri", more);
}

json rows(const SpeakingCheckpoint& checkpoint, const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + "\n";
  const auto result = score(checkpoint, text, {"--json"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  return json::parse(result.out);
}

json line(const std::string& kind, const std::string& text, const std::string& answer) {
  return {{"kind", kind}, {"language", "de"}, {"text", text}, {"answer", answer}};
}

/// A prompt whose greedy answer of `n` tokens is text that becomes the same tokens again.
std::string readable_prompt(const SpeakingCheckpoint& checkpoint, int n, Answer& answer) {
  const auto tokenizer = text::Tokenizer::load(checkpoint.directory());
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    const std::string prompt = std::string("Der Kolibri ") + letter;
    answer = greedy(checkpoint, prompt, n);
    std::vector<std::int32_t> ids = tokenizer.encode(prompt);
    ids.insert(ids.end(), answer.ids.begin(), answer.ids.end());
    if (tokenizer.encode(prompt + answer.text) == ids) return prompt;
  }
  FAIL("no prompt has an answer that reads back");
  return {};
}

TEST_CASE("an answer is exact when greedy decoding gives it, and not when its last token is another") {
  for (const Family family : {Family::kolibri1, Family::qwen4_exp}) {
    const SpeakingCheckpoint checkpoint(family);
    Answer answer;
    const std::string prompt = readable_prompt(checkpoint, 3, answer);
    const json all = rows(checkpoint, {line("a", prompt, answer.text), line("b", prompt, answer.text + "q"),
                                       line("b", prompt, answer.text), line("c", prompt + answer.text, "")});
    REQUIRE(all.size() == 4);
    CHECK(all[0].at("exact") == 1.0);
    CHECK(all[1].at("exact") == 0.5);
    CHECK(all[1].at("prompts") == 2);
    CHECK(all[2].at("exact").is_null());  // nothing was expected
    CHECK(all[2].at("form").is_null());
    CHECK(all[2].at("perplexity") == all[0].at("perplexity"));
    CHECK(all[3].at("kind") == "all");
    CHECK(all[3].at("exact").get<double>() == Approx(2.0 / 3));
  }
}

TEST_CASE("a perplexity is that of the model's own logits, over more tokens than are looked at at once") {
  const SpeakingCheckpoint checkpoint(Family::kolibri1);
  std::string text;
  for (int i = 0; i < 40; ++i) text += "Der Leuchtturm steht " + std::to_string(i) + ". ";
  const auto tokenizer = text::Tokenizer::load(checkpoint.directory());
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  REQUIRE(ids.size() > 128);
  const auto opened = checkpoint::Checkpoint::open(checkpoint.directory());
  const model::Model model(opened, runtime::Precision::parse("native"));
  ThreadPool pool(1);
  model::Session session(model, pool, {static_cast<std::int64_t>(ids.size())});
  const auto vocab_size = static_cast<std::size_t>(SpeakingCheckpoint::kVocabSize);
  const auto n_ids = static_cast<std::size_t>(checkpoint.n_ids());  // the rows above are padding
  std::vector<float> logits(ids.size() * vocab_size);
  session.forward(ids, logits);
  long double nats = 0;
  for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
    long double sum = 0;
    for (std::size_t v = 0; v < n_ids; ++v) sum += std::exp(static_cast<long double>(logits[t * vocab_size + v]));
    nats += std::log(sum) - static_cast<long double>(logits[t * vocab_size + static_cast<std::size_t>(ids[t + 1])]);
  }
  const auto expected = static_cast<double>(std::exp(nats / static_cast<long double>(ids.size() - 1)));
  const json all = rows(checkpoint, {line("text", text, "")});
  CHECK(all[0].at("tokens") == ids.size() - 1);
  CHECK(all[0].at("perplexity").get<double>() == Approx(expected).epsilon(1e-10));  // sums of about 500 doubles
}

TEST_CASE("a reply has the expected form when it ends by itself and has the same parts") {
  const SpeakingCheckpoint checkpoint(Family::kolibri1);
  Answer answer;
  const std::string prompt = readable_prompt(checkpoint, 3, answer);
  const json expected = line("chat", prompt, answer.text);
  CHECK(rows(checkpoint, {expected})[0].at("form") == 0.0);  // nothing ends it
  checkpoint.write("generation_config.json", json{{"eos_token_id", answer.ids[2]}}.dump());
  const json ended = rows(checkpoint, {expected});
  CHECK(ended[0].at("form") == 1.0);
  CHECK(ended[0].at("calls") == 1.0);
  CHECK(rows(checkpoint, {line("chat", prompt, "<think>Wind</think>Wind")})[0].at("form") == 0.0);
  json call = line("tool", prompt, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
  call["tools"] = json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const json called = rows(checkpoint, {call});
  CHECK(called[0].at("form") == 0.0);
  CHECK(called[0].at("calls") == 0.0);
}

TEST_CASE("held-out lines that cannot be judged are refused by their number") {
  const SpeakingCheckpoint checkpoint(Family::kolibri1);
  const std::string good = line("a", "Der Wind", " geht").dump() + "\n";
  for (const auto& [bad, why] : std::vector<std::pair<std::string, std::string>>{
           {"{", "JSON"},
           {"[]", "JSON"},
           {R"({"kind": "a", "language": "de", "text": "x"})", "answer"},
           {R"({"kind": "a", "language": "de", "text": 5, "answer": "x"})", "text"},
           {R"({"kind": "a", "language": "de", "text": "", "answer": "x"})", "text"},
           {R"({"kind": "a", "language": "de", "text": "x", "answer": "x", "tools": 1})", "tools"}}) {
    const auto result = score(checkpoint, good + bad + "\n");
    CHECK(result.exit_status == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, ContainsSubstring("held-out.jsonl: line 2") && ContainsSubstring(why));
  }
  CHECK(score(checkpoint, "").exit_status == 2);
  CHECK(score(checkpoint, good).exit_status == 0);
}

}  // namespace
}  // namespace kalibri::cli::test

// `kalibri generate`, from outside.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/cli/tests/speaking_checkpoint.hpp"
#include "engine/text/tokenizer.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"

namespace kalibri::cli::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::Family;
using nlohmann::json;
using Ids = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

fixtures::RunResult generate(const std::string& directory, const Words& words,
                             const fixtures::RunOptions& options = {}) {
  Words arguments = {"generate", directory};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return fixtures::run_program(std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri", arguments, options);
}

/// The answers of a run with --json.
json answers(const std::string& directory, Words words) {
  words.emplace_back("--json");
  const auto result = generate(directory, words);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  return json::parse(result.out).at("answers");
}

const SpeakingCheckpoint& kolibri() {
  static const SpeakingCheckpoint checkpoint(Family::kolibri1);
  return checkpoint;
}

const SpeakingCheckpoint& qwen() {
  static const SpeakingCheckpoint checkpoint(Family::qwen4_exp);
  return checkpoint;
}

/// A tokenizer.json for whose model any of `ids` can be said: as the text <N>, an added token. The bytes are elsewhere.
std::string tokenizer_that_says(const std::set<std::int64_t>& ids, std::int64_t vocab_size) {
  json file = json::parse(fixtures::tokenizer_json(Family::kolibri1, {}));
  std::map<std::int64_t, std::string> byte_of;
  for (const auto& [byte, id] : file.at("model").at("vocab").items()) byte_of[id] = byte;
  json vocab = json::object();
  json added = json::array();
  std::int64_t n_bytes = 0;
  for (std::int64_t id = 0; id < vocab_size; ++id) {
    const std::string name = "<" + std::to_string(id) + ">";
    const bool is_byte = !ids.contains(id) && n_bytes < 256;
    vocab[is_byte ? byte_of.at(n_bytes++) : name] = id;
    if (!ids.contains(id)) continue;
    json token = file.at("added_tokens")[0];
    token["id"] = id;
    token["content"] = name;
    token["special"] = false;
    added.push_back(token);
  }
  file["model"]["vocab"] = vocab;
  file["added_tokens"] = added;
  return file.dump();
}

TEST_CASE("a text that becomes a golden prompt is answered with the golden greedy ids") {
  for (const char* set : {"kolibri1-k2", "kolibri1-k2-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const auto golden = fixtures::read_safetensors(*directory / "golden.safetensors");
    const Ids prompt = golden.at("input_ids").integers();
    const Ids expected = golden.at("greedy_ids").integers();
    std::set<std::int64_t> used(prompt.begin(), prompt.end());
    used.insert(expected.begin(), expected.end());
    const fixtures::CheckpointCopy copy(*directory);
    fixtures::write_file(copy.directory() / "tokenizer.json", tokenizer_that_says(used, 512));
    fixtures::write_file(copy.directory() / "generation_config.json", R"({"eos_token_id": [511, 510], "top_k": 128})");
    std::string text;
    std::string told;
    for (const std::int64_t id : prompt) text += "<" + std::to_string(id) + ">";
    for (const std::int64_t id : expected) told += "<" + std::to_string(id) + ">";
    for (const char* precision : {"exact", "native"}) {
      INFO(set << ", " << precision);
      const Words words = {"-p", text, "-n", "16", "--temperature", "0", "--precision", precision, "--chunk", "50"};
      const json answer = answers(copy.directory().string(), words)[0];
      CHECK(answer.at("prompt_ids").get<Ids>() == prompt);
      CHECK(answer.at("ids").get<Ids>() == expected);
      CHECK(answer.at("text") == told);
      CHECK(answer.at("finish_reason") == "length");
      CHECK(generate(copy.directory().string(), words).out == told + "\n");
    }
  }
}

TEST_CASE("the text that is printed is the ids' text, and a seed repeats it") {
  for (const SpeakingCheckpoint* checkpoint : {&kolibri(), &qwen()}) {
    const auto tokenizer = text::Tokenizer::load(checkpoint->directory());
    const Words words = {"-p", "Der Kolibri", "-n", "30", "--seed", "7", "--ignore-eos"};
    const json answer = answers(checkpoint->directory(), words)[0];
    const auto ids = answer.at("ids").get<std::vector<std::int32_t>>();
    CHECK(ids.size() == 30);
    CHECK(answer.at("text") == tokenizer.decode(ids, true));
    CHECK(*std::ranges::max_element(ids) < checkpoint->n_ids());
    const auto plain = generate(checkpoint->directory(), words);
    CHECK(plain.out == answer.at("text").get<std::string>() + "\n");
    CHECK(plain.err.empty());

    Words others = words;
    others[5] = "8";
    CHECK(answers(checkpoint->directory(), others)[0].at("ids") != answer.at("ids"));
    others = {"-p", "Der Kolibri", "-n", "30", "--ignore-eos"};
    const auto by_chance = generate(checkpoint->directory(), others);
    const std::string told = "kalibri: seed ";
    REQUIRE(by_chance.err.starts_with(told));
    others.insert(others.end(),
                  {"--seed", by_chance.err.substr(told.size(), by_chance.err.find(' ', told.size()) - told.size())});
    CHECK(generate(checkpoint->directory(), others).out == by_chance.out);
    CHECK(by_chance.out != plain.out);
  }
}

TEST_CASE("several prompts are each answered as if alone, from words and from files") {
  const fixtures::TempDirectory folder;
  const std::string file = (folder.path() / "a b.txt").string();
  fixtures::write_file(file, "Der Wind\n");
  const Words flags = {"-n", "5", "--seed", "1", "--ignore-eos"};
  const auto with = [&](Words words) {
    words.insert(words.end(), flags.begin(), flags.end());
    return generate(kolibri().directory(), words).out;
  };
  CHECK(with({"-p", "[a,b]", "--prompt=-x", "--prompt-file", file}) ==
        with({"-p", "[a,b]"}) + with({"--prompt=-x"}) + with({"-p", "Der Wind\n"}));
  CHECK(with({"-p", "[a,b]"}) != with({"-p", "a,b"}));
}

TEST_CASE("an answer ends before a stop string and at a stop id, and says so") {
  const Words words = {"-p", "Der", "-n", "40", "--temperature", "0", "--ignore-eos"};
  const std::string text = answers(kolibri().directory(), words)[0].at("text");
  const auto is_letter = [](char c) { return c > ' ' && c <= '~'; };
  const std::string stop(1, *std::find_if(text.begin() + 1, text.end(), is_letter));
  Words stopped = words;
  stopped.insert(stopped.end(), {"--stop", "no such text", "--stop", stop, "--stats"});
  const auto result = generate(kolibri().directory(), stopped);
  CHECK(result.out == text.substr(0, text.find(stop)) + "\n");
  CHECK_THAT(result.err, ContainsSubstring("end: stop") && ContainsSubstring("prompt: ") && ContainsSubstring("tok/s"));

  const Words ended = {
      "-p", "Der", "-n", "9", "--temperature", "0", "--logit-bias", std::to_string(kolibri().im_end()) + "=100"};
  const json answer = answers(kolibri().directory(), ended)[0];
  CHECK(answer.at("ids") == json::array({kolibri().im_end()}));
  CHECK(answer.at("text") == "");
  CHECK(answer.at("finish_reason") == "stop");
}

TEST_CASE("text that reads like a special token is one, unless the prompt is literal") {
  const Words words = {"-p", "<|im_end|>", "-n", "1", "--seed", "1"};
  CHECK(answers(kolibri().directory(), words)[0].at("prompt_ids") == json::array({kolibri().im_end()}));
  Words literal = words;
  literal.emplace_back("--literal");
  CHECK(answers(kolibri().directory(), literal)[0].at("prompt_ids").size() > 5);
}

TEST_CASE("a question goes through the family's template, and its reply is parted") {
  const Words words = {"--chat", "-p", "Was?", "--system", "Kurz.", "--no-think", "-n", "12", "--seed", "3"};
  const std::string kolibri_prompt = answers(kolibri().directory(), words)[0].at("prompt");
  CHECK_THAT(kolibri_prompt, Catch::Matchers::StartsWith("<|im_start|>system\nKurz.\n\n"));
  CHECK_THAT(kolibri_prompt, Catch::Matchers::EndsWith("<|im_start|>user\nWas?<|im_end|>\n<|im_start|>assistant\n"
                                                       "<think>\n\n</think>\n\n"));
  const json answer =
      answers(qwen().directory(), {"--chat", "-p", "Was?", "-n", "12", "--seed", "3", "--ignore-eos"})[0];
  CHECK_THAT(answer.at("prompt").get<std::string>(), Catch::Matchers::EndsWith("<|im_start|>assistant\n<think>\n"));
  CHECK(answer.at("content") == "");
  CHECK(answer.at("text").get<std::string>().find(answer.at("reasoning").get<std::string>()) != std::string::npos);
  CHECK(answer.at("tool_calls") == json::array());
  const auto shown = generate(qwen().directory(), {"--chat", "-p", "Was?", "-n", "12", "--seed", "3", "--ignore-eos"});
  CHECK(shown.out == "<think>\n" + answer.at("reasoning").get<std::string>() + "\n</think>\n\n");
}

TEST_CASE("a chat template that is not the known one is told, or refused if that is asked for") {
  const SpeakingCheckpoint other(Family::kolibri1);
  const Words words = {"--chat", "-p", "Was?", "-n", "1", "--seed", "3"};
  CHECK(generate(other.directory(), words).err.empty());
  Words strict = words;
  strict.emplace_back("--require-known-template");
  CHECK_THAT(generate(other.directory(), strict).err, ContainsSubstring("has no chat template"));
  other.write("chat_template.jinja", "{{ messages }}");
  const auto warned = generate(other.directory(), words);
  CHECK(warned.exit_status == 0);
  CHECK_THAT(warned.err, ContainsSubstring("warning") && ContainsSubstring("9ba35d4b"));
  const auto refused = generate(other.directory(), strict);
  CHECK(refused.exit_status == 2);
  CHECK(refused.out.empty());
  CHECK_THAT(refused.err, ContainsSubstring("9ba35d4b"));
}

TEST_CASE("Ctrl-C ends an answer with what was written, status 130, and no further prompt is answered") {
  const auto started = [](const std::string& out) { return !out.empty(); };
  const Words words = {"-p", "Der", "-p", "Die", "-n", "4000", "--seed", "1", "--ignore-eos", "--stats"};
  const auto result = generate(kolibri().directory(), words, {.interrupt_when = started});
  CHECK(result.exit_status == 130);
  CHECK(result.out.ends_with('\n'));
  CHECK_THAT(result.err, ContainsSubstring("end: cancelled"));
  CHECK(std::ranges::count(result.err, '\n') == 1);
}

TEST_CASE("what cannot be answered is refused with status 2, by name and with what to do") {
  const SpeakingCheckpoint small(Family::kolibri1, 32);
  const SpeakingCheckpoint bad(Family::kolibri1);
  bad.write("generation_config.json", R"({"eos_token_id": 1, "top_p": "high"})");
  const SpeakingCheckpoint mute(Family::kolibri1);
  std::filesystem::remove(std::filesystem::path(mute.directory()) / "tokenizer.json");
  const std::string good = kolibri().directory();
  const std::vector<std::tuple<std::string, Words, std::string>> cases = {
      {good, {}, "expected -p TEXT or --prompt-file"},
      {good, {"-p", ""}, "the prompt is empty"},
      {good, {"--prompt-file", "/no/file"}, "/no/file: is not there"},
      {good, {"-p", "a", "-n", "0"}, "--max-tokens: expected at least 1"},
      {good, {"-p", "a", "--temperature", "3"}, "temperature: found 3"},
      {good, {"-p", "a", "--top-p", "-1"}, "top_p: found -1"},
      {good, {"-p", "a", "--logit-bias", "x=1"}, "--logit-bias: 'x=1', expected ID=VALUE"},
      {good, {"-p", "a", "--logit-bias", "319=1"}, "logit_bias: id 319"},  // padding
      {good, {"-p", "a", "--stop", ""}, "stop: "},
      {good, {"-p", "a", "--precision", "fast"}, "'fast'"},
      {good, {"-p", "a", "--chat", "--literal"}, "--literal"},
      {good, {"-p", "a", "--chat", "--effort", "much"}, "--effort: "},
      {good, {"-p", "a", "--effort", "low"}, "--chat"},
      {good, {"-p", "a", "--chat", "--effort", "low", "--no-think"}, "--no-think"},
      {good, {"-p", "a", "--chat", "--tools", good + "/config.json"}, "tools: expected an array"},
      {small.directory(), {"-p", std::string(32, 'x')}, "has 32 tokens and leaves no room"},
      {small.directory(), {"-p", std::string(40, 'x')}, "the model has 32 positions"},
      {bad.directory(), {"-p", "a"}, "generation_config.json: top_p: found \"high\""},
      {mute.directory(), {"-p", "a"}, "tokenizer.json: is not there"},
      {"/no/checkpoint", {"-p", "a"}, "/no/checkpoint"},
  };
  for (const auto& [directory, words, what] : cases) {
    const auto result = generate(directory, words);
    CAPTURE(words, result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, ContainsSubstring(what));
  }
  // One token of room is enough, and an answer never outgrows the model.
  CHECK(answers(small.directory(), {"-p", std::string(31, 'x'), "--seed", "1", "--ignore-eos"})[0].at("ids").size() ==
        1);
}

}  // namespace
}  // namespace kalibri::cli::test

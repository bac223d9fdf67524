// `kalibri chat`, from a pipe and on a terminal.
#include <algorithm>
#include <filesystem>
#include <regex>

#include "engine/cli/tests/on_terminal.hpp"
#include "engine/cli/tests/speaking_checkpoint.hpp"
#include "engine/text/tokenizer.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/run_program.hpp"

namespace kalibri::cli::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::Family;
using Words = std::vector<std::string>;

const std::filesystem::path kProgram = std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri";

const SpeakingCheckpoint& checkpoint(Family family) {
  static const SpeakingCheckpoint kolibri(Family::kolibri1);
  static const SpeakingCheckpoint qwen(Family::qwen4_exp);
  return family == Family::kolibri1 ? kolibri : qwen;
}

Words arguments(Family family, const Words& more) {
  Words words = {"chat", checkpoint(family).directory(), "--seed", "5", "-n", "6"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

fixtures::RunResult chat(Family family, const std::string& input, const Words& more = {}) {
  return fixtures::run_program(kProgram, arguments(family, more), {.input = input});
}

struct TurnStats {
  int n_prompt;
  int n_reused;
};

/// The numbers of the --stats lines.
std::vector<TurnStats> turn_stats(const std::string& notes) {
  std::vector<TurnStats> turns;
  const std::regex line("prompt: ([0-9]+) tokens, ([0-9]+) of them reused");
  for (std::sregex_iterator at(notes.begin(), notes.end(), line), end; at != end; ++at) {
    turns.push_back({std::stoi((*at)[1]), std::stoi((*at)[2])});
  }
  return turns;
}

TEST_CASE("from a pipe each line is answered, nothing but answers is printed, and the end of the input ends") {
  for (const Family family : {Family::kolibri1, Family::qwen4_exp}) {
    const auto once = chat(family, "Was?\n");
    CHECK(once.exit_status == 0);
    CHECK(once.out.ends_with('\n'));
    CHECK(once.out.find("> ") == once.out.find("<think> "));  // no prompt
    CHECK(once.out.find('\033') == std::string::npos);
    const auto twice = chat(family, "Was?\r\n\nUnd?");
    CHECK(twice.out.starts_with(once.out));
    CHECK(twice.out.size() > once.out.size());
    CHECK(chat(family, "").out.empty());
    CHECK(chat(family, "Was?\n/quit\nUnd?\n").out == once.out);
  }
}

TEST_CASE("a second turn reads only what is new, whether the template keeps the thinking or not") {
  for (const Family family : {Family::kolibri1, Family::qwen4_exp}) {
    const auto tokenizer = text::Tokenizer::load(checkpoint(family).directory());
    for (const bool thinks : {true, false}) {
      // A letter is forced, so that the answer is text which any template keeps as it is.
      Words words = {"--stats", "--logit-bias", std::to_string(tokenizer.id_of("a").value()) + "=100"};
      if (!thinks) words.emplace_back("--no-think");
      const auto result = chat(family, "Was?\nUnd?\nNoch?\n", words);
      INFO(result.out << result.err);
      CHECK(std::ranges::count(result.out, 'a') == 18);
      const auto turns = turn_stats(result.err);
      REQUIRE(turns.size() == 3);
      CHECK(turns[0].n_reused == 0);
      // Six tokens are an answer, the last of which has not gone through the model. They stay the tokens that they
      // were, though "aa" is one too, where the template repeats them as they stand. It does not where it closes a
      // thinking that was cut off (Qwen): then all of the last prompt is reused. Nor where it leaves the empty thinking
      // out again that opened an answer (Kolibri): then all before that answer's turn.
      REQUIRE(tokenizer.encode("aaaaaa").size() < 6);
      const bool is_kolibri = family == Family::kolibri1;
      const std::string opening =
          std::string("<|im_start|>assistant\n") + (thinks ? "<think>\n" : "<think>\n\n</think>\n\n");
      const auto n_opening = static_cast<int>(tokenizer.encode(opening).size());
      for (const std::size_t i : {1U, 2U}) {
        const int more = is_kolibri == thinks ? 5 : is_kolibri ? -n_opening : 0;
        CHECK(turns[i].n_reused == turns[i - 1].n_prompt + more);
        CHECK(turns[i].n_prompt > turns[i].n_reused);
      }
    }
  }
}

TEST_CASE("/reset forgets, and the same question gets the same answer again") {
  const Words greedy = {"--temperature", "0", "--stats"};
  const auto result = chat(Family::kolibri1, "Was?\n/reset\nWas?\n", greedy);
  const std::string half = result.out.substr(0, result.out.size() / 2);
  CHECK(result.out == half + half);
  const auto turns = turn_stats(result.err);
  REQUIRE(turns.size() == 2);
  CHECK(turns[0].n_prompt == turns[1].n_prompt);
  CHECK(turns[1].n_reused == turns[0].n_prompt);  // the conversation is forgotten, what was computed is not
  CHECK_THAT(result.err, ContainsSubstring(" of them reused; first token"));  // nothing was read: it has no rate
  const auto without = turn_stats(chat(Family::kolibri1, "Was?\nWas?\n", greedy).err);
  REQUIRE(without.size() == 2);
  CHECK(without[1].n_prompt > without[0].n_prompt);
}

TEST_CASE("a line that is no question and a conversation that is too long are refused with status 2") {
  CHECK_THAT(chat(Family::kolibri1, "/nothing\n").err, ContainsSubstring("'/nothing' is no command"));
  CHECK_THAT(chat(Family::kolibri1, "/tool 4\n").err, ContainsSubstring("no tool call awaits an answer"));
  CHECK(chat(Family::kolibri1, "/nothing\n").exit_status == 2);
  CHECK(chat(Family::kolibri1, "//nothing\n").exit_status == 0);
  const auto result = chat(Family::kolibri1, "Was?\n" + std::string(300, 'x') + "\n", {"--context", "300"});
  CHECK(result.exit_status == 2);
  CHECK_FALSE(result.out.empty());
  CHECK_THAT(result.err, ContainsSubstring("leaves no room: at most 300 positions"));
}

TEST_CASE("on a terminal Ctrl-C stops the answer and not the program, and twice at the prompt ends it") {
  OnTerminal terminal(kProgram, {"chat", checkpoint(Family::qwen4_exp).directory(), "--seed", "5", "-n", "4000",
                                 "--logit-bias", std::to_string(checkpoint(Family::qwen4_exp).im_end()) + "=-100"});
  REQUIRE(terminal.shows("> "));
  terminal.type("\x03");
  REQUIRE(terminal.shows("Ctrl-C once more, or Ctrl-D, ends."));
  REQUIRE(terminal.shows("> "));
  terminal.type("Was?\n");
  REQUIRE(terminal.shows("\033[2m"));  // the thinking, dim
  terminal.type("\x03");
  REQUIRE(terminal.shows("\033[0m"));
  REQUIRE(terminal.shows("> "));
  terminal.type("/unknown\n");
  REQUIRE(terminal.shows("is no command"));
  REQUIRE(terminal.shows("> "));
  terminal.type("Und?\n");
  REQUIRE(terminal.shows("\033[2m"));
  terminal.type("\x03");
  REQUIRE(terminal.shows("> "));
  terminal.type("\x03");
  REQUIRE(terminal.shows("> "));
  terminal.type("\x03");
  CHECK(terminal.exit_status() == 130);
}

TEST_CASE("on a terminal Ctrl-D ends with status 0") {
  OnTerminal terminal(kProgram, arguments(Family::kolibri1, {}));
  REQUIRE(terminal.shows("> "));
  terminal.type("/help\n");
  REQUIRE(terminal.shows("/reset"));
  REQUIRE(terminal.shows("> "));
  terminal.type("\x04");
  CHECK(terminal.exit_status() == 0);
}

}  // namespace
}  // namespace kalibri::cli::test

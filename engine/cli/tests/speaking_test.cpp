// The parts of `generate` and `chat` without a model: what a reply looks like, lines and signals.
#include <signal.h>
#include <unistd.h>

#include <sstream>

#include "engine/base/error.hpp"
#include "engine/cli/interrupt.hpp"
#include "engine/cli/line_reader.hpp"
#include "engine/cli/reply_printer.hpp"
#include "engine/cli/sampling_flags.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::cli {
namespace {

using chat::ReplyFormat;
using chat::ReplyStart;

const std::string kReply =
    "<think>\nHm.\n</think>\n\nIch sehe nach.\n<tool_call>\n{\"name\": \"wind\", \"arguments\": {\"ort\": "
    "\"Kap\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"zeit\"}\n</tool_call>";

std::string shown(const std::string& reply, bool is_terminal, std::size_t n_bytes) {
  std::ostringstream out;
  ReplyPrinter printer(out, is_terminal, {ReplyFormat::hermes, ReplyStart::anywhere, {chat::Json{}}});
  for (std::size_t at = 0; at < reply.size(); at += n_bytes) printer.feed(reply.substr(at, n_bytes));
  printer.finish();
  return out.str();
}

TEST_CASE("a reply is printed as thinking, answer and tool calls, whatever its pieces") {
  const std::string calls = "tool call: wind {\"ort\": \"Kap\"}\ntool call: zeit {}\n";
  for (const std::size_t n_bytes : {1U, 3U, 1000U}) {
    CHECK(shown(kReply, false, n_bytes) == "<think>\nHm.\n</think>\n\nIch sehe nach.\n" + calls);
    CHECK(shown(kReply, true, n_bytes) == "\033[2mHm.\033[0m\n\nIch sehe nach.\n" + calls);
    CHECK(shown("Ja.", true, n_bytes) == "Ja.\n");
    CHECK(shown("<think>Hm", true, n_bytes) == "\033[2mHm\033[0m\n\n");
    CHECK(shown("", false, n_bytes).empty());
  }
}

TEST_CASE("a reply that breaks off in its thinking leaves no terminal dim") {
  std::ostringstream out;
  {
    ReplyPrinter printer(out, true, {ReplyFormat::hermes, ReplyStart::anywhere, {}});
    printer.feed("<think>Hm");
  }
  CHECK(out.str() == "\033[2mHm\033[0m\n");
}

TEST_CASE("a printed reply is kept in its parts") {
  std::ostringstream out;
  ReplyPrinter printer(out, true, {ReplyFormat::hermes, ReplyStart::anywhere, {chat::Json{}}});
  printer.feed(kReply);
  const Reply& reply = printer.finish();
  CHECK(reply.reasoning == "Hm.");
  CHECK(reply.content == "Ich sehe nach.");
  CHECK(reply.tool_calls == std::vector<chat::ParsedCall>{{"wind", "{\"ort\": \"Kap\"}"}, {"zeit", "{}"}});
}

TEST_CASE("what would steer a terminal does not reach it") {
  CHECK(for_terminal("a\tb\n\033[31mrot\a\r\x7F") == "a\tb\n?[31mrot???");
  CHECK(for_terminal("\xC2\x9B"
                     "31m \xC2\xA0 \xC3\x9F") == "?31m \xC2\xA0 \xC3\x9F");
  CHECK(shown("\033[2Jx", true, 100) == "?[2Jx\n");
  CHECK(shown("\033[2Jx", false, 100) == "\033[2Jx\n");
}

TEST_CASE("flags go over what is recommended, and a seed may be any 64 bits") {
  runtime::SamplingOptions recommended;
  recommended.temperature = 0.7;
  recommended.top_k = 20;
  recommended.min_p = 0.1;
  SamplingFlags flags;
  flags.top_k = -1;
  flags.min_p = 0;
  flags.logit_bias = {"3=-1.5", "0=100"};
  flags.seed = -1;
  const auto options = sampling_options(flags, recommended, 10);
  CHECK(options.temperature == 0.7);
  CHECK(options.top_k == 0);
  CHECK(options.min_p == 0);
  CHECK(options.logit_bias == std::vector<std::pair<std::int32_t, double>>{{3, -1.5}, {0, 100.0}});
  CHECK(options.seed == ~std::uint64_t{0});
  CHECK(sampling_options({}, recommended, 10).seed != sampling_options({}, recommended, 10).seed);
  for (const char* bias : {"", "=", "1", "1=", "=1", "1=x", "1=1x", "1.5=1", "99999999999=1", "1:1", "1=nan"}) {
    SamplingFlags bad;
    bad.logit_bias = {bias};
    CHECK_THROWS_AS(sampling_options(bad, recommended, 10), Error);
  }
}

/// A pipe, and what it is given.
struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() { REQUIRE(::pipe(ends) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    finish();
  }
  void write(const std::string& text) const {
    REQUIRE(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void finish() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
};

TEST_CASE("lines come as they were typed, the last one also without its end") {
  Pipe input;
  Interrupt interrupt;
  LineReader lines(input.ends[0], interrupt.descriptor());
  using Event = LineReader::Event;
  std::string line;
  input.write("one\ntwo\r\n\nth");
  for (const char* expected : {"one", "two", ""}) {
    CHECK(lines.next(line) == Event::line);
    CHECK(line == expected);
  }
  input.write("ree");
  input.finish();
  CHECK(lines.next(line) == Event::line);
  CHECK(line == "three");
  CHECK(lines.next(line) == Event::end);
}

TEST_CASE("Ctrl-C is noted, ends the wait for a line, and can be cleared") {
  Pipe input;
  Interrupt interrupt;
  LineReader lines(input.ends[0], interrupt.descriptor());
  std::string line;
  CHECK_FALSE(interrupt.flag());
  ::raise(SIGINT);
  CHECK(interrupt.flag());
  CHECK(lines.next(line) == LineReader::Event::interrupted);
  interrupt.clear();
  CHECK_FALSE(interrupt.flag());
  input.write("one\n");
  CHECK(lines.next(line) == LineReader::Event::line);
}

}  // namespace
}  // namespace kalibri::cli

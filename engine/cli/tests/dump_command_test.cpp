// `kalibri dump` from outside: what it writes, what it refuses and how it says so, and what a killed run leaves.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;
using fixtures::TempDirectory;

namespace {

RunResult kalibri_program(const std::vector<std::string>& arguments, const fixtures::RunOptions& options = {}) {
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", arguments, options);
}

std::string token_file(const TempDirectory& scratch, const std::string& json) {
  const auto path = scratch.path() / "tokens.json";
  fixtures::write_file(path, json);
  return path.string();
}

const char* const kPrompts = R"({"long": [1, 5, 9, 200, 7, 7, 3, 2, 90, 41, 8, 6], "short": [3]})";

}  // namespace

TEST_CASE("A dump holds every tensor of both prompts, and each tap that the format knows of this family") {
  const auto set = fixtures::find_golden("kolibri1-k1-fp8");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const std::string out = scratch.path() / "out.h5";
  const RunResult run =
      kalibri_program({"dump", *set, "--tokens", token_file(scratch, kPrompts), "-o", out, "--taps", "all"});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  const dump::Reader reader(out);
  REQUIRE(reader.header().precision == "native");
  REQUIRE(reader.prompts().size() == 2);
  for (const dump::PromptInfo& prompt : reader.prompts()) {
    for (const char* name : {"embedding", "final_norm", "logits"}) REQUIRE(reader.find(prompt.name, name).has_value());
    REQUIRE(prompt.layers.size() == 5);
    for (const std::int64_t layer : prompt.layers) {
      for (const char* name :
           {"residual", "router_logits", "router_gap", "expert_ids", "expert_weights", "q", "k", "v",
            "attention_context", "attention_out", "post_attention", "pre_mlp", "routed_out", "shared_out", "moe_out"}) {
        INFO(name);
        REQUIRE(reader.find(prompt.name, dump::layer_path(layer, name)).has_value());
      }
    }
  }
}

TEST_CASE("A dump keeps the logits of chosen positions, which are those of a dump that keeps all") {
  const auto set = fixtures::find_golden("kolibri1-k1-fp8");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const std::string tokens = token_file(scratch, kPrompts);
  const auto dump = [&](const std::string& positions) {
    const std::filesystem::path out = scratch.path() / (positions + ".h5");
    const RunResult run = kalibri_program({"dump", *set, "--tokens", tokens, "-o", out, "--positions", positions});
    INFO(run.err);
    REQUIRE(run.exit_status == 0);
    return dump::Reader(out);
  };
  const dump::Reader all = dump("all");
  const dump::Reader last = dump("last:2");
  const std::vector<double> logits = all.read_f64("long", "logits", 0, 12);
  const auto vocab = static_cast<std::ptrdiff_t>(logits.size() / 12);
  CHECK(last.read_i64("long", "positions", 0, 2) == std::vector<std::int64_t>{10, 11});
  CHECK(last.read_f64("long", "logits", 0, 2) == std::vector<double>(logits.end() - 2 * vocab, logits.end()));
  CHECK(last.read_f64("long", "final_norm", 0, 12) == all.read_f64("long", "final_norm", 0, 12));
  CHECK_FALSE(last.find("short", "positions").has_value());  // all of them
  CHECK_FALSE(dump("none").find("long", "logits").has_value());
  const std::string list = token_file(scratch, R"({"long": [1, 5, 9, 200, 7, 7, 3, 2, 90, 41, 8, 6]})");
  const dump::Reader chosen = dump("7,0,2-4,3");
  CHECK(chosen.read_i64("long", "positions", 0, 5) == std::vector<std::int64_t>{0, 2, 3, 4, 7});
  std::vector<double> expected;
  for (const std::ptrdiff_t pos : {0, 2, 3, 4, 7})
    expected.insert(expected.end(), logits.begin() + pos * vocab, logits.begin() + (pos + 1) * vocab);
  CHECK(chosen.read_f64("long", "logits", 0, 5) == expected);
}

TEST_CASE("A teacher-forced run on one's own residuals repeats the chained run, bit for bit, and decoding does too") {
  const auto set = fixtures::find_golden("kolibri1-k1-fp8");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const std::string tokens = token_file(scratch, kPrompts);
  const std::string chained = scratch.path() / "chained.h5";
  const std::string forced = scratch.path() / "forced.h5";
  const std::string decoded = scratch.path() / "decoded.h5";
  REQUIRE(kalibri_program({"dump", *set, "--tokens", tokens, "-o", chained}).exit_status == 0);
  REQUIRE(kalibri_program({"dump", *set, "--tokens", tokens, "-o", forced, "--mode", "teacher-forced", "--inputs",
                           chained, "--layers", "1-4", "--threads", "2", "--chunk", "5"})
              .exit_status == 0);
  REQUIRE(kalibri_program({"dump", *set, "--tokens", tokens, "-o", decoded, "--mode", "decode"}).exit_status == 0);
  const dump::Reader a(chained);
  const dump::Reader b(forced);
  const dump::Reader c(decoded);
  for (const dump::PromptInfo& prompt : a.prompts()) {
    const auto n = static_cast<std::int64_t>(prompt.tokens.size());
    const std::vector<double> logits = a.read_f64(prompt.name, "logits", 0, n);
    REQUIRE(b.read_f64(prompt.name, "logits", 0, n) == logits);
    REQUIRE(c.read_f64(prompt.name, "decode/all/logits", 0, n) == logits);
    for (const std::int64_t layer : {1, 4}) {
      const std::string path = dump::layer_path(layer, "residual");
      REQUIRE(a.read_f64(prompt.name, path, 0, n) == b.read_f64(prompt.name, path, 0, n));
    }
    REQUIRE_FALSE(b.find(prompt.name, dump::layer_path(0, "residual")).has_value());
  }
}

TEST_CASE("What cannot be used is refused with status 2, named, and leaves no file") {
  const auto set = fixtures::find_golden("kolibri1-k1-fp8");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const std::string out = scratch.path() / "out.h5";
  std::string longest = "[0";
  for (int i = 0; i < 4096; ++i) longest += ", 1";
  struct Case {
    std::string json;
    std::vector<std::string> more;
    std::string message;
  };
  const std::vector<Case> cases = {
      {R"({"p": [1, 256]})", {}, "prompt 'p', index 1: token id 256, expected 0 to 255 (vocab_size)"},
      {R"({"p": []})", {}, "prompt 'p': is empty"},
      {R"({"p": )" + longest + "]}", {}, "prompt 'p': 4097 tokens, expected at most 4096 (max_position_embeddings)"},
      {R"({"p": [-1]})", {}, "prompt 'p', index 0: -1 is no token id"},
      {R"({"p": [1.5]})", {}, "1.5 is no token id"},
      {R"({"p": [99999999999999999999]})", {}, "is no token id"},
      {R"({"p": [1], "p": [2]})", {}, "prompt 'p' appears twice"},
      {R"({"p": 3})", {}, "prompt 'p' is not a list"},
      {R"({"p": [[1]]})", {}, "prompt 'p', index 0: [1] is no token id"},
      {R"({"p": [[[1]]]})", {}, "nested deeper"},
      {R"([1])", {}, "is not a JSON object"},
      {R"({})", {}, "tokens.json: holds no prompts"},
      {R"({"p": [1)", {}, "is not JSON"},
      {R"({"p": [1]})", {"--taps", "soup"}, "'soup' is no tap"},
      {R"({"p": [1]})", {"--layers", "2-9"}, "--layers"},
      {R"({"p": [1]})", {"--layers", "x"}, "--layers: 'x'"},
      {R"({"p": [1]})", {"--layers", "1-2"}, "a chained run starts at layer 0"},
      {R"({"p": [1]})", {"--precision", "fast"}, "'fast' is not known"},
      {R"({"p": [1]})", {"--mode", "teacher-forced"}, "--inputs"},
      {R"({"p": [1]})", {"--prefill", "1"}, "--mode decode"},
      {R"({"p": [1]})", {"--threads", "-3"}, "--threads"},
      {R"({"p": [1]})", {"--mode", "teacher-forced", "--inputs", "/nowhere.h5"}, "/nowhere.h5"},
      {R"({"p": [1]})", {"--mode", "sideways"}, "--mode"},
      {R"({"p": [1]})", {"--chunk", "0"}, "--chunk"},
      {R"({"p": [1]})", {"--positions", "1"}, "positions out of 0 to 0 (prompt 'p')"},
      {R"({"p": [1]})", {"--positions", "0,"}, "--positions 0,: ''"},
      {R"({"p": [1]})", {"--positions", "last:0"}, "--positions last:0"},
      {R"({"p": [1, 2]})", {"--positions", "1-0"}, "--positions 1-0"},
      {R"({"p": [1, 2]})", {"--positions", "last:1", "--mode", "decode"}, "leave out --layers, --taps and --positions"},
      {R"({"a\u001b[31m": [1]})", {}, "prompt 'a?[31m': a name is not empty"},
      {R"({"a/b": [1]})", {}, "prompt 'a/b': a name is not empty"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> arguments = {"dump", *set, "--tokens", token_file(scratch, c.json), "-o", out};
    arguments.insert(arguments.end(), c.more.begin(), c.more.end());
    const RunResult run = kalibri_program(arguments);
    INFO(c.message << "\n" << run.err);
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring(c.message));
    CHECK_FALSE(std::filesystem::exists(out));
    CHECK_FALSE(std::filesystem::exists(out + ".partial"));
  }
  const RunResult unwritable =
      kalibri_program({"dump", *set, "--tokens", token_file(scratch, kPrompts), "-o", "/nowhere/x.h5"});
  CHECK(unwritable.exit_status == 2);
  CHECK_THAT(unwritable.err, ContainsSubstring("/nowhere/x.h5"));
}

TEST_CASE("A file that is no dump is not overwritten, nor one that the run reads, but an earlier dump is") {
  const auto set = fixtures::find_golden("kolibri1-k1-fp8");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const std::string tokens = token_file(scratch, kPrompts);
  const std::string out = scratch.path() / "out.h5";
  const std::vector<std::string> dump = {"dump", *set, "--tokens", tokens, "-o"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), dump.begin(), dump.end());
    return kalibri_program(more);
  };
  const std::string foreign = scratch.path() / "thesis.txt";
  fixtures::write_file(foreign, "years of work");
  const RunResult refused = run({foreign});
  CHECK(refused.exit_status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("thesis.txt: exists and is no dump: it is not overwritten"));
  CHECK(fixtures::read_file(foreign) == "years of work");
  fixtures::write_file(out, "");
  CHECK(run({out}).exit_status == 0);
  CHECK(run({out}).exit_status == 0);
  const RunResult inputs = run({out, "--mode", "teacher-forced", "--inputs", out});
  CHECK(inputs.exit_status == 2);
  CHECK_THAT(inputs.err, ContainsSubstring("is also --inputs"));
  CHECK_THAT(run({""}).err, ContainsSubstring("-o: empty"));
  CHECK_THAT(run({tokens}).err, ContainsSubstring("is also --tokens"));
}

TEST_CASE("Residuals of another checkpoint are taken, and a warning says so") {
  const auto fp8 = fixtures::find_golden("kolibri1-k1-fp8");
  const auto bf16 = fixtures::find_golden("kolibri1-k1");
  if (!fp8.has_value() || !bf16.has_value()) KALIBRI_SKIP("golden sets kolibri1-k1 and kolibri1-k1-fp8 are not there");
  const TempDirectory scratch;
  const std::string tokens = token_file(scratch, kPrompts);
  const std::string residuals = scratch.path() / "residuals.h5";
  const std::string out = scratch.path() / "out.h5";
  const auto dump = [&](const std::filesystem::path& set, const std::string& file, std::vector<std::string> more) {
    more.insert(more.begin(), {"dump", set, "--tokens", tokens, "-o", file});
    return kalibri_program(more);
  };
  REQUIRE(dump(*bf16, residuals, {}).exit_status == 0);
  const RunResult same = dump(*bf16, out, {"--mode", "teacher-forced", "--inputs", residuals});
  CHECK(same.exit_status == 0);
  CHECK(same.err.empty());
  const RunResult other = dump(*fp8, out, {"--mode", "teacher-forced", "--inputs", residuals});
  CHECK(other.exit_status == 0);
  CHECK_THAT(other.err, ContainsSubstring("residuals.h5: made from another checkpoint (fingerprint "));
}

TEST_CASE("A folder whose config.json names no family, or an unknown one, is refused by that") {
  const TempDirectory scratch;
  fixtures::write_file(scratch.path() / "model.safetensors", fixtures::raw_safetensors("{}", ""));
  const auto err = [&](const std::string& config) {
    fixtures::write_file(scratch.path() / "config.json", config);
    const RunResult run = kalibri_program(
        {"dump", scratch.path(), "--tokens", token_file(scratch, kPrompts), "-o", scratch.path() / "out.h5"});
    CHECK(run.exit_status == 2);
    return run.err;
  };
  CHECK_THAT(err("{}"), ContainsSubstring("config.json: model_type: missing or no string"));
  CHECK_THAT(err(R"({"model_type": "llama"})"),
             ContainsSubstring("model_type: 'llama', expected kolibri1 or qwen4_exp"));
}

TEST_CASE("Usage mistakes exit with 2, help and version with 0, and each command's help has an example") {
  CHECK(kalibri_program({}).exit_status == 2);
  CHECK(kalibri_program({"soup"}).exit_status == 2);
  CHECK(kalibri_program({"dump"}).exit_status == 2);
  CHECK(kalibri_program({"--help"}).exit_status == 0);
  const RunResult version = kalibri_program({"--version"});
  CHECK(version.exit_status == 0);
  CHECK_THAT(version.out, ContainsSubstring("kernels: "));
  const RunResult scalar = kalibri_program({"--version"}, {.environment = {{"KALIBRI_ISA", "scalar"}}});
  CHECK_THAT(scalar.out, ContainsSubstring("kernels: scalar"));
  for (const char* command : {"verify", "inspect", "dump", "compare", "report"}) {
    const RunResult help = kalibri_program({command, "--help"});
    CHECK(help.exit_status == 0);
    CHECK_THAT(help.out, ContainsSubstring("Example:\n  kalibri " + std::string(command)));
  }
}

TEST_CASE("What is no file, no number, no instruction set or no longer there is refused with 2, never a crash") {
  const auto set = fixtures::find_golden("kolibri1-k1-fp8");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const std::string out = scratch.path() / "out.h5";
  const auto refused = [](const RunResult& run, const std::string& message) {
    INFO(message << "\n" << run.err);
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring(message));
  };
  refused(kalibri_program({"dump", *set, "--tokens", scratch.path(), "-o", out}), "is no regular file");
  refused(kalibri_program({"report", scratch.path()}), "is no regular file");
  refused(kalibri_program({"--version"}, {.environment = {{"KALIBRI_ISA", "nonsense"}}}), "nonsense");
  REQUIRE(kalibri_program({"dump", *set, "--tokens", token_file(scratch, kPrompts), "-o", out}).exit_status == 0);
  refused(kalibri_program({"compare", out, out, "--window", "-5"}), "--window");
  refused(kalibri_program({"compare", out, out, "--json", scratch.path()}), "is no regular file");
  const RunResult full = fixtures::run_program(
      "/bin/sh", {"-c", std::string("'" KALIBRI_BIN_DIR "/kalibri' inspect '") + set->string() + "' > /dev/full"});
  refused(full, "standard output: cannot be written");
}

TEST_CASE("A run killed in the middle leaves nothing that looks whole, and the next run succeeds") {
  const auto set = fixtures::find_golden("kolibri1-k2");
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k2 is not there");
  const TempDirectory scratch;
  std::string ids = "[1";
  for (int i = 0; i < 1500; ++i) ids += ", " + std::to_string(i % 500);
  const std::string tokens = token_file(scratch, R"({"p": )" + ids + "]}");
  const std::filesystem::path out = scratch.path() / "out.h5";
  const std::filesystem::path partial = out.string() + ".partial";
  const std::vector<std::string> arguments = {"dump", *set, "--tokens", tokens, "-o", out, "--taps", "all"};
  fixtures::RunOptions killed;
  killed.kill_when = [&] { return std::filesystem::exists(partial) && std::filesystem::file_size(partial) > 100000; };
  const RunResult first = kalibri_program(arguments, killed);
  REQUIRE(first.signal == 9);
  REQUIRE_FALSE(std::filesystem::exists(out));
  if (std::filesystem::exists(partial)) REQUIRE_THROWS_AS(dump::Reader(partial), dump::Error);
  REQUIRE(kalibri_program(arguments).exit_status == 0);
  REQUIRE(dump::Reader(out).prompts().size() == 1);
  REQUIRE_FALSE(std::filesystem::exists(partial));
}

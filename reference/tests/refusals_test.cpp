// Bad input from outside: each case ends with exit status 2 and a message that names it, and leaves no dump, not even
// an unfinished one.
#include <filesystem>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::CheckpointCopy;
using nlohmann::json;

const Tokens kTokens{{"hello", {1, 2, 3}}};

/// Runs and expects exit status 2 with `text` in the message and nothing in the output's folder.
void check_refused(const std::filesystem::path& checkpoint, const Tokens& tokens, const std::vector<std::string>& more,
                   const std::string& text) {
  const fixtures::TempDirectory folder;
  const fixtures::RunResult result = run_reference(checkpoint, tokens, folder.path() / "out.h5", more);
  CHECK(result.exit_status == 2);
  CHECK_THAT(result.err, ContainsSubstring(text));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a damaged or incomplete checkpoint is refused, and the tensor at fault is named") {
  struct Damage {
    std::string text;  // of the message
    std::function<void(const CheckpointCopy&)> apply;
  };
  const std::string tensor = "model.layers.3.mlp.experts.5.up_proj.weight";
  const auto header = [](auto edit) { return [edit](const CheckpointCopy& copy) { copy.edit_header(edit); }; };
  const std::vector<Damage> damages{
      {tensor + ": missing", header([=](json& h) { h["other"] = h.at(tensor), h.erase(tensor); })},
      {tensor + ": shape [128, 64], expected [64, 128]", header([=](json& h) {
         h[tensor]["shape"] = {128, 64};
       })},
      {tensor + ": dtype I16", header([=](json& h) { h[tensor]["dtype"] = "I16"; })},
      {tensor + ": unknown dtype", header([=](json& h) { h[tensor]["dtype"] = "F12"; })},
      {tensor, header([=](json& h) {
         h[tensor]["shape"] = {1000, 1000};
       })},
      {"cannot be opened", [](const CheckpointCopy& c) { std::filesystem::remove(c.directory() / "config.json"); }},
      {"holds no model*.safetensors",
       [](const CheckpointCopy& c) { std::filesystem::remove(c.directory() / "model.safetensors"); }},
      {"truncated or damaged",
       [](const CheckpointCopy& c) { std::filesystem::resize_file(c.directory() / "model.safetensors", 100'000); }},
      {"config.json: is no valid JSON",
       [](const CheckpointCopy& c) { fixtures::write_file(c.directory() / "config.json", "{\"hidden"); }},
      {"'norm_topk_prob'", [](const CheckpointCopy& c) { c.edit_config([](json& j) { j["norm_topk_prob"] = true; }); }},
      {"'hidden_size'", [](const CheckpointCopy& c) { c.edit_config([](json& j) { j.erase("hidden_size"); }); }},
      {"'model_type'", [](const CheckpointCopy& c) { c.edit_config([](json& j) { j["model_type"] = "llama"; }); }},
      {"'layer_types'", [](const CheckpointCopy& c) { c.edit_config([](json& j) { j["layer_types"].erase(0); }); }},
  };
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  for (const Damage& damage : damages) {
    CAPTURE(damage.text);
    const CheckpointCopy copy(set->checkpoint);
    damage.apply(copy);
    check_refused(copy.directory(), kTokens, {}, damage.text);
  }
  check_refused(set->checkpoint / "nowhere", kTokens, {}, "nowhere: is no folder");
}

TEST_CASE("an FP8 code that is NaN stops the run in its middle and leaves no dump") {
  const auto set = open_golden_set("kolibri1-k1-fp8");
  if (!set) KALIBRI_SKIP("no golden data");
  const CheckpointCopy copy(set->checkpoint);
  copy.edit_byte("model.layers.3.self_attn.o_proj.weight", 200, [](unsigned char) { return 0xff; });
  check_refused(copy.directory(), kTokens, {}, "model.layers.3.self_attn.o_proj.weight: row 1, columns 0 to 127");
}

TEST_CASE("prompts and options that cannot be run are refused") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const std::filesystem::path& good = set->checkpoint;
  check_refused(good, {{"hello", {1, 256}}}, {}, "prompt 'hello': entry 1 is 256");
  check_refused(good, {{"hello", {-1}}}, {}, "prompt 'hello': entry 0 is -1");
  check_refused(good, {{"empty", {}}}, {}, "prompt 'empty': is empty");
  check_refused(good, {}, {}, "expected prompts");
  check_refused(good, {{"long", std::vector<std::int64_t>(4097, 1)}}, {}, "max_position_embeddings is 4096");
  check_refused(good, kTokens, {"--layers", "0-5"}, "--layers 0-5");
  check_refused(good, kTokens, {"--layers", "1-2"}, "a chained run begins at layer 0");
  check_refused(good, kTokens, {"--taps", "q,delta"}, "'delta' is none of this model's");
  check_refused(good, kTokens, {"--positions", "3"}, "prompt 'hello'");
  check_refused(good, kTokens, {"--tokens", "nowhere.json"}, "--tokens");
  check_refused(good, kTokens, {"--dtype", "f16"}, "--dtype");
  check_refused(good, kTokens, {"--precision", "fp16"}, "--precision: 'fp16'");
  check_refused(good, kTokens, {"--mode", "decode"}, "--mode");
  check_refused(good, kTokens, {"--mode", "teacher-forced"}, "--inputs");
  check_refused(good, kTokens, {"--threads", "-1"}, "--threads");
  check_refused(good, {{"red\x1b[31m", {1}}}, {}, "\\u001b[31m\": a name is not empty");
  check_refused(good, kTokens, {"--inputs", "x.h5"}, "--mode teacher-forced");
  check_refused(good, kTokens, {"--mode", "teacher-forced", "--inputs", "nowhere.h5"}, "nowhere.h5");
  check_refused(good, kTokens, {"--no-such-option"}, "no-such-option");
}

TEST_CASE("inputs that are not of these prompts or this model are refused") {
  const auto set = open_golden_set("kolibri1-k1");
  const auto other = open_golden_set("kolibri1-k2");
  if (!set || !other) KALIBRI_SKIP("no golden data");
  const std::filesystem::path inputs = set->scratch.path() / "inputs.h5";
  const std::vector<std::string> forced{"--mode", "teacher-forced", "--inputs", inputs};
  REQUIRE(run_reference(set->checkpoint, kTokens, inputs, {"--layers", "0-2"}).exit_status == 0);
  check_refused(set->checkpoint, {{"other", {1}}}, forced, "prompt 'other': missing");
  check_refused(set->checkpoint, {{"hello", {1, 2, 4}}}, forced, "its tokens differ");
  check_refused(set->checkpoint, kTokens, forced, "has no layers/03/residual");
  check_refused(other->checkpoint, kTokens, forced, "embedding: shape [3, 128], expected [3, 64]");
  const fixtures::RunResult onto_itself = run_reference(set->checkpoint, kTokens, inputs, forced);
  CHECK(onto_itself.exit_status == 2);
  CHECK_THAT(onto_itself.err, ContainsSubstring("is also --inputs"));
}

TEST_CASE("an output that cannot be written is refused") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const fixtures::RunResult nowhere = run_reference(set->checkpoint, kTokens, set->scratch.path() / "no" / "out.h5");
  CHECK(nowhere.exit_status == 2);
  CHECK_THAT(nowhere.err, ContainsSubstring("out.h5"));

  // A file may not grow beyond 64 blocks of 512 bytes: what a full disk looks like from inside.
  const fixtures::TempDirectory folder;
  const std::filesystem::path tokens = set->scratch.path() / "tokens.json";
  const std::filesystem::path out = folder.path() / "out.h5";
  fixtures::write_file(tokens, json(Tokens{{"golden", set->ids("input_ids")}}).dump());
  const fixtures::RunResult full = fixtures::run_program(
      "/bin/sh", {"-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"", KALIBRI_BIN_DIR "/kalibri-reference", "run",
                  set->checkpoint, "--tokens", tokens, "-o", out});
  CHECK(full.exit_status == 2);
  CHECK_THAT(full.err, ContainsSubstring("out.h5"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a run that was killed leaves no dump, and can be run again") {
  const auto set = open_golden_set("kolibri1-k2");
  if (!set) KALIBRI_SKIP("no golden data");
  const fixtures::TempDirectory folder;
  const std::filesystem::path out = folder.path() / "out.h5";
  const std::filesystem::path tokens = set->scratch.path() / "tokens.json";
  fixtures::write_file(tokens, json(Tokens{{"long", std::vector<std::int64_t>(4000, 5)}}).dump());
  const std::vector<std::string> arguments{"run", set->checkpoint, "--tokens", tokens, "-o", out};
  const std::filesystem::path program = KALIBRI_BIN_DIR "/kalibri-reference";
  fixtures::RunOptions options;
  options.kill_when = [&] { return !std::filesystem::is_empty(folder.path()); };
  const fixtures::RunResult killed = fixtures::run_program(program, arguments, options);
  CHECK(killed.signal != 0);
  CHECK_FALSE(std::filesystem::exists(out));

  REQUIRE(run_reference(set->checkpoint, kTokens, out).exit_status == 0);
  CHECK(dump::Reader(out).find_prompt("hello") != nullptr);
}

TEST_CASE("help, version and usage errors have the statuses that scripts expect") {
  const std::filesystem::path program = KALIBRI_BIN_DIR "/kalibri-reference";
  const fixtures::RunResult help = fixtures::run_program(program, {"run", "--help"});
  CHECK(help.exit_status == 0);
  CHECK_THAT(help.out, ContainsSubstring("Example:") && ContainsSubstring("--tokens"));
  const fixtures::RunResult version = fixtures::run_program(program, {"--version"});
  CHECK(version.exit_status == 0);
  CHECK_THAT(version.out, ContainsSubstring("kalibri-reference " KALIBRI_VERSION) && ContainsSubstring("LibTorch"));
  CHECK(fixtures::run_program(program, {}).exit_status == 2);
  CHECK(fixtures::run_program(program, {"run"}).exit_status == 2);
  CHECK(fixtures::run_program(program, {"walk"}).exit_status == 2);
}

}  // namespace
}  // namespace kalibri::reference::test

// The modes and the options that choose parts of a run: teacher forcing, layers, positions, several prompts, threads.
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "oracle/dump/names.hpp"
#include "reference/checkpoint.hpp"
#include "reference/tests/difference.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

using fixtures::CheckpointCopy;
using Catch::Matchers::ContainsSubstring;

/// Runs the golden prompt and keeps the dump as `file` in the set's scratch folder.
std::filesystem::path run_to(const GoldenSet& set, const std::string& file, const std::vector<std::string>& more,
                             const std::filesystem::path& checkpoint = {}) {
  const std::filesystem::path out = set.scratch.path() / file;
  const fixtures::RunResult result =
      run_reference(checkpoint.empty() ? set.checkpoint : checkpoint, {{"golden", set.ids("input_ids")}}, out, more);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  return out;
}

TEST_CASE("a teacher-forced run on its own outputs repeats them bit by bit") {
  const std::string dtype = GENERATE("f32", "f64");
  const auto set = open_golden_set("kolibri1-k1-fp8");
  if (!set) KALIBRI_SKIP("no golden data");
  const auto chained = run_to(*set, "chained.h5", {"--dtype", dtype});
  const dump::Reader expected(chained);
  const dump::Reader forced(
      run_to(*set, "forced.h5", {"--dtype", dtype, "--mode", "teacher-forced", "--inputs", chained}));
  CHECK(expected.header().mode == "chained");
  CHECK(forced.header().mode == "teacher-forced");
  for (std::int64_t layer = 0; layer < set->n_layers; ++layer) {
    const std::string residual = dump::layer_path(layer, "residual");
    CHECK(read_all(forced, residual) == read_all(expected, residual));
  }
  CHECK(read_all(forced, "logits") == read_all(expected, "logits"));
}

TEST_CASE("in a teacher-forced run a layer's defect stays in that layer") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const CheckpointCopy copy(set->checkpoint);
  copy.edit_byte("model.layers.2.post_attn_norm.weight", 1, [](unsigned char byte) { return byte ^ 0x80; });
  const auto inputs = run_to(*set, "inputs.h5", {});
  const dump::Reader healthy(inputs);
  const dump::Reader forced(
      run_to(*set, "forced.h5", {"--mode", "teacher-forced", "--inputs", inputs}, copy.directory()));
  const dump::Reader chained(run_to(*set, "chained.h5", {}, copy.directory()));
  for (std::int64_t layer = 0; layer < set->n_layers; ++layer) {
    const std::string residual = dump::layer_path(layer, "residual");
    CHECK((read_all(forced, residual) == read_all(healthy, residual)) == (layer != 2));
    CHECK((read_all(chained, residual) == read_all(healthy, residual)) == (layer < 2));
  }
  CHECK(read_all(forced, "logits") == read_all(healthy, "logits"));  // from the inputs' last residual
}

TEST_CASE("an fp64 run takes fp32 inputs as the exact numbers that they are") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const auto f32 = run_to(*set, "f32.h5", {});
  const std::vector<std::string> forced{"--dtype", "f64", "--mode", "teacher-forced", "--inputs"};
  const auto with = [&](const std::filesystem::path& inputs) {
    std::vector<std::string> options = forced;
    options.push_back(inputs);
    return options;
  };
  const dump::Reader on_f32(run_to(*set, "f64-on-f32.h5", with(f32)));
  CHECK(on_f32.find("golden", dump::layer_path(1, "residual"))->type == dump::ElementType::f64);
  // One layer's fp32 rounding is left, chained or not.
  for (std::int64_t layer = 0; layer < set->n_layers; ++layer) {
    const std::string residual = dump::layer_path(layer, "residual");
    const Difference d =
        difference(read_all(on_f32, residual), read_all(dump::Reader(f32), residual), set->width("embed"));
    CHECK(d.rel > 0);
    CHECK(d.rel <= 1e-6);
  }
  // Embedding rows are bf16, so layer 0 has the same inputs chained and forced; later layers do not.
  const dump::Reader f64(run_to(*set, "f64.h5", {"--dtype", "f64"}));
  CHECK(read_all(on_f32, dump::layer_path(0, "residual")) == read_all(f64, dump::layer_path(0, "residual")));
  CHECK(read_all(on_f32, dump::layer_path(1, "residual")) != read_all(f64, dump::layer_path(1, "residual")));
}

TEST_CASE("some layers alone give what they give among all") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const auto whole_file = run_to(*set, "whole.h5", {});
  const dump::Reader whole(whole_file);
  const dump::Reader first(run_to(*set, "first.h5", {"--layers", "0-1"}));
  const dump::Reader middle(
      run_to(*set, "middle.h5", {"--layers", "2-3", "--mode", "teacher-forced", "--inputs", whole_file}));
  const dump::Reader last(
      run_to(*set, "last.h5", {"--layers", "4", "--mode", "teacher-forced", "--inputs", whole_file}));
  CHECK(first.find_prompt("golden")->layers == std::vector<std::int64_t>{0, 1});
  CHECK(middle.find_prompt("golden")->layers == std::vector<std::int64_t>{2, 3});
  CHECK(last.find_prompt("golden")->layers == std::vector<std::int64_t>{4});
  for (const auto& [part, layer] : {std::pair{&first, 1}, {&middle, 2}, {&middle, 3}, {&last, 4}}) {
    const std::string residual = dump::layer_path(layer, "residual");
    CHECK(read_all(*part, residual) == read_all(whole, residual));
  }
  CHECK_FALSE(first.find("golden", "logits"));
  CHECK_FALSE(middle.find("golden", "final_norm"));
  CHECK(read_all(last, "logits") == read_all(whole, "logits"));
}

TEST_CASE("prompts of one run do not see each other, and come back whole") {
  const auto set = open_golden_set("kolibri1-k2-fp8");
  if (!set) KALIBRI_SKIP("no golden data");
  const std::vector<std::int64_t> ids = set->ids("input_ids");
  const Tokens prompts{
      {"golden", ids}, {"a first one", {3, 1, 2}}, {"one token", {7}}, {"zweiter", {ids.begin(), ids.begin() + 40}}};
  const std::filesystem::path out = set->scratch.path() / "several.h5";
  const fixtures::RunResult result = run_reference(set->checkpoint, prompts, out);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  const dump::Reader dump(out);
  CHECK(dump.prompts().size() == prompts.size());
  std::string differing;
  for (const std::string& complaint : complaints_f32(*set, dump)) differing += complaint + "\n";
  CHECK(differing == "");
  // A prompt's beginning has the logits that it has alone: nothing later is seen.
  const Difference d =
      difference(dump.read_f64("golden", "logits", 0, 40), dump.read_f64("zweiter", "logits", 0, 40), 512);
  CHECK(d.max_abs <= 2e-4);
  CHECK(dump.find("one token", "logits")->shape == std::vector<std::int64_t>{1, 512});
}

TEST_CASE("Option --positions chooses rows of the logits and changes none") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const dump::Reader all(run_to(*set, "all.h5", {}));
  const dump::Reader some(run_to(*set, "some.h5", {"--positions", "20-22,0,3"}));
  CHECK(some.find_prompt("golden")->positions == std::vector<std::int64_t>{0, 3, 20, 21, 22});
  CHECK(difference(all.read_f64("golden", "logits", 3, 1), some.read_f64("golden", "logits", 1, 1), 256).max_abs <=
        2e-4);
  CHECK(difference(all.read_f64("golden", "logits", 22, 1), some.read_f64("golden", "logits", 4, 1), 256).max_abs <=
        2e-4);
  CHECK_FALSE(all.find("golden", "positions"));
  const dump::Reader none(run_to(*set, "none.h5", {"--positions", "none"}));
  CHECK_FALSE(none.find("golden", "logits"));
  CHECK(none.find("golden", "final_norm"));
}

TEST_CASE("the dump says what ran and how to run it again") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const auto file = run_to(*set, "said.h5", {"--dtype", "f64", "--threads", "1", "--layers", "0-2", "--taps", "q,v"});
  const dump::Reader dump(file);
  CHECK(dump.header().producer == "kalibri-reference");
  CHECK(dump.header().model_type == "kolibri1");
  CHECK(dump.header().n_streams == 1);
  CHECK(dump.header().precision == "native");
  CHECK(dump.header().checkpoint_fingerprint == fingerprint(Checkpoint(set->checkpoint), false));
  CHECK(dump.peak_rss_bytes() > 0);
  CHECK(dump.wall_s() > 0);
  const nlohmann::json options = nlohmann::json::parse(dump.header().options);
  CHECK(options.at("directory") == set->checkpoint.string());
  CHECK(options.at("out") == file.string());
  CHECK(options.at("dtype") == "f64");
  CHECK(options.at("mode") == "chained");
  CHECK(options.at("threads") == 1);
  CHECK(options.at("layers") == "0-2");
  CHECK(options.at("taps") == "q,v");
  CHECK_THAT(options.at("arithmetic").get<std::string>(), ContainsSubstring("LibTorch"));
}

}  // namespace
}  // namespace kalibri::reference::test

// The program against the outputs of the upstream implementation, in fp32 and fp64; and that this comparison can fail.
#include <fmt/format.h>

#include <fstream>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "reference/tests/difference.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

using fixtures::CheckpointCopy;
using Catch::Matchers::ContainsSubstring;

std::string joined(const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

TEST_CASE("an fp32 run reproduces every golden set") {
  const std::string name = GENERATE(from_range(kGoldenSets));
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  std::string summary;
  CHECK(joined(complaints_f32(*set, run_golden(*set, set->checkpoint, {}), &summary)) == "");
  fmt::print("{} f32: {}\n", name, summary);
}

TEST_CASE("an fp64 run reproduces every golden set's fp64 outputs") {
  const std::string name = GENERATE(from_range(kGoldenSets));
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  std::string summary;
  CHECK(joined(complaints_f64(*set, run_golden(*set, set->checkpoint, {"--dtype", "f64"}), &summary)) == "");
  fmt::print("{} f64: {}\n", name, summary);
}

TEST_CASE("one changed bit of a weight is noticed in its layer and not before") {
  struct Defect {
    const char* set;
    const char* tensor;
    std::size_t byte;    // of the tensor
    unsigned char bits;  // that are turned over
  };
  // The lowest mantissa bit of one bf16 norm weight; the highest mantissa bit of one FP8 block's scale.
  const Defect defect =
      GENERATE(values<Defect>({{"kolibri1-k1", "model.layers.2.post_attn_norm.weight", 0, 0x01},
                               {"kolibri1-k1-fp8", "model.layers.2.self_attn.v_proj.weight_scale_inv", 2, 0x40},
                               {"kolibri1-k2", "model.layers.2.moe.router.expert_bias", 1, 0x80}}));
  CAPTURE(defect.set, defect.tensor);
  const auto set = open_golden_set(defect.set);
  if (!set) KALIBRI_SKIP("no golden data");
  const CheckpointCopy copy(set->checkpoint);
  copy.edit_byte(defect.tensor, defect.byte, [&](unsigned char byte) { return byte ^ defect.bits; });

  const std::vector<std::string> f32 = complaints_f32(*set, run_golden(*set, copy.directory(), {}));
  REQUIRE_FALSE(f32.empty());
  CHECK_THAT(f32.front(), ContainsSubstring("layers/02/"));
  CHECK_THAT(joined(f32), ContainsSubstring("logits"));
  const std::vector<std::string> f64 = complaints_f64(*set, run_golden(*set, copy.directory(), {"--dtype", "f64"}));
  REQUIRE_FALSE(f64.empty());
  CHECK_THAT(f64.front(), ContainsSubstring("layers/02/"));
}

TEST_CASE("the fp64 bound tells an fp32 run from an fp64 run") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  CHECK(complaints_f64(*set, run_golden(*set, set->checkpoint, {})).size() >= static_cast<std::size_t>(set->n_layers));
}

TEST_CASE("the greedy continuation of every golden set is the upstream's") {
  const std::string name = GENERATE(from_range(kGoldenSets));
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  // Each step is the grown prompt, run again; all steps in one run. If every step's maximum is the next golden id, then
  // growing the prompt by the program's own choice would have given the same prompts.
  const std::vector<std::int64_t> greedy = set->ids("greedy_ids");
  Tokens prompts;
  std::vector<std::int64_t> tokens = set->ids("input_ids");
  for (std::size_t step = 0; step < greedy.size(); ++step) {
    prompts[fmt::format("step{:02}", step)] = tokens;
    tokens.push_back(greedy[step]);
  }
  const std::filesystem::path out = set->scratch.path() / "greedy.h5";
  const fixtures::RunResult result = run_reference(set->checkpoint, prompts, out, {"--positions", "last:1"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  const dump::Reader dump(out);
  std::vector<std::int64_t> chosen;
  for (const auto& [prompt, ids] : prompts) {
    CHECK(dump.find_prompt(prompt)->positions == std::vector{static_cast<std::int64_t>(ids.size()) - 1});
    chosen.push_back(argmax(dump.read_f64(prompt, "logits", 0, 1)));
  }
  CHECK(chosen == greedy);
}

TEST_CASE("an argument of KL, a row's relative error and NaN are measured as defined") {
  const std::vector<double> truth{3.0, 4.0, 0.0, 1.0};
  const std::vector<double> candidate{3.0, 4.5, 0.0, 3.0};
  const Difference d = difference(truth, candidate, 2);
  CHECK(d.max_abs == 2.0);
  CHECK(d.rel_to_max == 0.5);
  CHECK(d.rel_token_max == 2.0);
  CHECK(d.rel == Approx(std::sqrt(4.25 / 26.0)));
  // p = (1/2, 1/2), q = (1/4, 3/4): KL = ln 2 - (ln 3) / 2.
  CHECK(kl_mean(std::vector{0.0, 0.0}, std::vector{0.0, std::log(3.0)}, 2) ==
        Approx(std::log(2.0) - std::log(3.0) / 2));
  const Difference nan = difference(truth, std::vector{3.0, 4.0, std::nan(""), 1.0}, 2);
  CHECK_FALSE(nan.max_abs <= 1e300);
  CHECK_FALSE(nan.rel_token_max <= 1e300);
  CHECK(argmax(std::vector{1.0, 5.0, 5.0}) == 1);
}

}  // namespace
}  // namespace kalibri::reference::test

// Packing, the optimiser, exported numbers, and the program kalibri-train from outside.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "fixtures/catch.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"
#include "reference/training/batches.hpp"
#include "reference/training/export.hpp"
#include "reference/training/optimiser.hpp"
#include "reference/training/run_file.hpp"

namespace kalibri::reference::training {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;

RunResult run_train(const std::vector<std::string>& arguments, const fixtures::RunOptions& options = {}) {
  return fixtures::run_program(std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri-train", arguments, options);
}

TEST_CASE("documents are packed whole, aligned, and predict only themselves") {
  const std::vector<Ids> documents = {{5, 6, 7}, {8, 9}, {1, 2, 3, 4, 5, 6}};
  std::size_t next = 0;
  const Batch batch = pack(documents, next, 2, 8, 4);
  CHECK(next == 3);
  CHECK(batch.ids == std::vector<std::int64_t>{5, 6, 7, 0, 8, 9, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0});
  CHECK(batch.documents == std::vector<std::int32_t>{0, 0, 0, -1, 1, 1, -1, -1, 0, 0, 0, 0, 0, 0, -1, -1});
  CHECK(batch.targets ==
        std::vector<std::int64_t>{6, 7, -100, -100, 9, -100, -100, -100, 2, 3, 4, 5, 6, -100, -100, -100});
  const Batch again = pack(documents, next, 1, 4, 4);  // from the first document, and the long one is cut
  CHECK(again.ids == std::vector<std::int64_t>{5, 6, 7, 0});
  CHECK(next == 4);
}

TEST_CASE("lines that hold no ids are refused by their number") {
  const fixtures::TempDirectory scratch;
  const std::filesystem::path file = scratch.path() / "ids";
  fixtures::write_file(file, "{\"ids\": [1, 2]}\n{\"ids\": [1, 40]}\n");
  CHECK_THROWS_WITH(read_ids(file, 40), ContainsSubstring("line 2") && ContainsSubstring("id 40"));
  fixtures::write_file(file, "{\"ids\": [1, 2]}\n{\"text\": \"a\"}\n");
  CHECK_THROWS_WITH(read_ids(file, 40), ContainsSubstring("line 2") && ContainsSubstring("kalibri tokenize --jsonl"));
  CHECK_THROWS_AS(read_ids(scratch.path() / "none", 40), Error);
}

TEST_CASE("the optimiser's first step by hand") {
  ParameterTable table;
  table.matrix("a", {1}, 0);
  table.constant("b", {1}, 0);
  table.constant("fixed", {1}, 0, /*is_learnt=*/false);
  Adam adam(table, {.weight_decay = 0.5, .max_norm = 100});
  std::vector<float> values = {2, 2, 2};
  const std::vector<float> grads = {3, -4, 12};
  CHECK(adam.step(values, grads, 1, 0.1) == Approx(13));
  // A first step goes by the rate against the gradient's sign; a matrix shrinks by rate * decay first.
  CHECK(values[0] == Approx(2 * (1 - 0.1 * 0.5) - 0.1));
  CHECK(values[1] == Approx(2.1));
  CHECK(values[2] == 2);
  Adam clipped(table, {.weight_decay = 0, .max_norm = 1.3});
  values = {0, 0, 0};
  clipped.step(values, grads, 1, 0.1);
  CHECK(clipped.mean[0] == Approx(0.1 * 0.3));
}

TEST_CASE("the learning rate rises, stays and falls") {
  CHECK(learning_rate(1, 1, 10, 300) == Approx(0.1));
  CHECK(learning_rate(1, 100, 10, 300) == Approx(1));
  CHECK(learning_rate(1, 250, 10, 300) == Approx(0.5));
  CHECK(learning_rate(1, 300, 10, 300) == Approx(0.05));
}

TEST_CASE("exported FP8 numbers are the nearest, with scales for each block") {
  Layout layout;
  layout.table.matrix("m.weight", {130, 129}, 1);
  layout.format = [](const Parameter&) { return Format::fp8; };
  layout.scale_dtype = GENERATE("F32", "BF16");
  layout.config_json = "{}";
  std::vector<float> values(130 * 129);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i)) * (i < 128 * 129 ? 1.0F : 100.0F);
  const fixtures::TempDirectory scratch;
  export_checkpoint(layout, values, {}, scratch.path() / "out");
  const auto tensors = fixtures::read_safetensors(scratch.path() / "out" / "model.safetensors");
  const std::vector<double> codes = tensors.at("m.weight").values();
  const std::vector<double> scales = tensors.at("m.weight_scale_inv").values();
  REQUIRE(tensors.at("m.weight_scale_inv").shape == std::vector<std::int64_t>{2, 2});
  CHECK(scales[2] > 50 * scales[0]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double scale = scales[i / 129 / 128 * 2 + i % 129 / 128];
    const double x = static_cast<double>(values[i]);
    // Half a step: 2^-4 of a normal number (2^-8 more where a rounded scale makes the largest one saturate), 2^-10 of
    // the scale where numbers are subnormal.
    const double bound = std::max(std::fabs(x) * (0x1p-4 + 0x1p-20), scale * 0x1p-10);
    REQUIRE(std::fabs(codes[i] * scale - x) <= bound);
  }
}

/// Documents in which the second half repeats the first.
std::string easy_corpus() {
  std::string text;
  for (int n = 0; n < 200; ++n) {
    std::string half;
    for (int t = 0; t < 8; ++t) half += fmt::format("{}, ", 3 + (n * 7 + t * (n % 5 + 1)) % 30);
    text += "{\"ids\": [2, " + half + half + "1]}\n";
  }
  return text;
}

std::vector<double> losses(const std::string& out) {
  std::vector<double> found;
  const std::regex pattern("loss ([0-9.]+)");
  for (std::sregex_iterator i(out.begin(), out.end(), pattern), end; i != end; ++i) found.push_back(std::stod((*i)[1]));
  return found;
}

TEST_CASE("a short training lets the loss fall, uses all experts, and a killed one ends with the same bits") {
  const fixtures::TempDirectory scratch;
  const std::string ids = (scratch.path() / "ids.jsonl").string();
  fixtures::write_file(ids, easy_corpus());
  const std::string model = GENERATE("kolibri1", "qwen4_exp");
  const auto arguments = [&](const std::string& run) {
    return std::vector<std::string>{
        "train",        model,  "--ids",          ids,    "--run",     (scratch.path() / run).string(),
        "--size",       "tiny", "--steps",        "120",  "--rows",    "2",
        "--row-tokens", "64",   "--rate",         "1e-2", "--warmup",  "10",
        "--log-every",  "10",   "--save-seconds", "0",    "--threads", "1"};
  };
  const RunResult whole = run_train(arguments("whole"));
  INFO(whole.err << whole.out);
  REQUIRE(whole.exit_status == 0);
  const std::vector<double> fell = losses(whole.out);
  REQUIRE(fell.size() == 12);
  CHECK(fell.back() < 0.6 * fell.front());
  CHECK(whole.out.find("least expert 0.00", whole.out.size() / 2) == std::string::npos);

  const std::filesystem::path state = scratch.path() / "killed" / "state";
  const RunResult killed =
      run_train(arguments("killed"), {.kill_when = [&] { return std::filesystem::exists(state); }});
  REQUIRE(killed.signal == 9);
  CHECK(read_run_state(scratch.path() / "killed").step < 120);
  REQUIRE(run_train(arguments("killed")).exit_status == 0);
  CHECK(fixtures::read_file(state) == fixtures::read_file(scratch.path() / "whole" / "state"));

  // Its checkpoint is a whole one of the family.
  const std::string out = (scratch.path() / "model").string();
  REQUIRE(run_train({"export", (scratch.path() / "whole").string(), out}).exit_status == 0);
  const RunResult inspected =
      fixtures::run_program(std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri", {"inspect", out});
  INFO(inspected.out << inspected.err);
  CHECK(inspected.exit_status == 0);

  // What it learnt it can show; and a cut state is refused.
  fixtures::write_file(scratch.path() / "prompts", "{\"ids\": [2, 4, 6, 8, 10, 12, 14, 16, 18, 4]}\n");
  fixtures::write_file(scratch.path() / "full", "{\"ids\": [2, 4, 6, 8, 10, 12, 14, 16, 18, 4, 6, 8]}\n");
  const RunResult scored =
      run_train({"score", (scratch.path() / "whole").string(), "--prompts", (scratch.path() / "prompts").string(),
                 "--whole", (scratch.path() / "full").string()});
  CHECK_THAT(scored.out, ContainsSubstring("1 prompts: "));
  std::filesystem::resize_file(state, std::filesystem::file_size(state) - 4);
  const RunResult cut = run_train(arguments("killed"));
  CHECK(cut.exit_status == 2);
  CHECK_THAT(cut.err, ContainsSubstring("cut short"));
}

TEST_CASE("a run is not continued with another model") {
  const fixtures::TempDirectory scratch;
  const std::string ids = (scratch.path() / "ids").string();
  fixtures::write_file(ids, easy_corpus());
  const std::string run = (scratch.path() / "run").string();
  REQUIRE(run_train({"train", "kolibri1", "--size", "tiny", "--ids", ids, "--run", run, "--steps", "1", "--rows", "1",
                     "--row-tokens", "32", "--threads", "1"})
              .exit_status == 0);
  const RunResult other = run_train({"train", "qwen4_exp", "--size", "tiny", "--ids", ids, "--run", run});
  CHECK(other.exit_status == 2);
  CHECK_THAT(other.err, ContainsSubstring("another model"));
}

}  // namespace
}  // namespace kalibri::reference::training

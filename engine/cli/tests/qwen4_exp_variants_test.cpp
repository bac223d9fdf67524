// What the golden sets of qwen4_exp cannot show, on made checkpoints: each layout, format of scales and output gate
// goes through `verify`; so does a prompt beyond the released budget; and the ways to read these layouts wrongly are
// seen.
#include <algorithm>
#include <filesystem>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using fixtures::Qwen4ExpOptions;
using fixtures::Qwen4ExpShape;
using fixtures::RunResult;
using nlohmann::json;
using test::kalibri_program;
using test::report_of;

namespace {

struct Variant {
  const char* name;
  Qwen4ExpOptions options;
  std::int64_t n_experts = 12;
  std::int64_t budget = 16;
  std::int64_t block_size = 4;
};

std::vector<Variant> variants() {
  using Experts = Qwen4ExpOptions::Experts;
  using Table = Qwen4ExpOptions::Table;
  return {
      {"released-layout", {}},
      {"f16-scales-silu", {.scale_dtype = "F16", .output_gate = "silu"}, 11},
      {"f32-scales-gate-absent", {.scale_dtype = "F32", .output_gate = "", .n_shards = 3}},
      {"flat-config", {.nested_config = false, .hash_constants = false}, 12, 32, 8},
      {"flat-names", {.nested_names = false, .foreign_tensors = false}, 12, 6, 2},
      {"bf16-experts", {.experts = Experts::bf16, .table = Table::bf16, .nested_config = false, .nested_names = false}},
      {"fused-experts", {.experts = Experts::fused, .nested_config = false, .nested_names = false}, 13},
  };
}

void exchange(const fixtures::CheckpointCopy& copy, const std::string& a, const std::string& b) {
  const auto tensors = fixtures::read_safetensors(copy.weights());
  fixtures::patch_tensor(copy.weights(), a, 0, tensors.at(b).bytes);
  fixtures::patch_tensor(copy.weights(), b, 0, tensors.at(a).bytes);
}

/// --reference and --reference64: what an earlier verify has left in its folder.
void add_dumps_of_reference(std::vector<std::string>& arguments, const std::filesystem::path& verified) {
  arguments.insert(arguments.end(),
                   {"--reference", verified / "reference.h5", "--reference64", verified / "reference-f64.h5",
                    "--reference64", verified / "reference-f64-teacher-forced.h5"});
}

}  // namespace

TEST_CASE("verify holds on every layout of qwen4_exp, in both precisions") {
  const fixtures::TempDirectory scratch;
  for (const Variant& variant : variants()) {
    Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
    shape.n_experts = variant.n_experts;
    shape.indexer_budget = variant.budget;
    shape.block_size = variant.block_size;
    const auto directory = scratch.path() / variant.name;
    fixtures::make_qwen4_exp(directory, shape, variant.options);
    const std::filesystem::path first = directory.string() + "-native";
    for (const char* precision : {"native", "exact"}) {
      const std::filesystem::path out = directory.string() + "-" + precision;
      std::vector<std::string> arguments = {"verify", directory, "--out", out, "--precision", precision};
      if (out != first) add_dumps_of_reference(arguments, first);
      const RunResult run = kalibri_program(arguments);
      INFO(variant.name << ", " << precision << "\n" << run.out << run.err);
      CHECK(run.exit_status == 0);
      const json report = report_of(out);
      CHECK(report.at("verdict").at("status") == "held");
      CHECK(report.at("findings").size() > 20);
      for (const json& finding : report.at("findings")) CHECK(finding.at("status") != "fell_short");
    }
  }
}

TEST_CASE("experts and table shards in the order of their names, and a scale grid read by columns, are seen") {
  const fixtures::TempDirectory scratch;
  const auto directory = scratch.path() / "made";
  fixtures::make_qwen4_exp(directory, fixtures::qwen4_exp_tiny(), {});
  const auto first = scratch.path() / "first";
  REQUIRE(kalibri_program({"verify", directory, "--out", first}).exit_status == 0);
  const std::string p = "model.language_model.layers.";
  struct Defect {
    std::string name;
    std::int64_t layer;
    std::function<void(const fixtures::CheckpointCopy&)> apply;
  };
  // By name, 10 comes before 2.
  const std::vector<Defect> defects = {
      {"experts", 2,
       [&](const auto& copy) {
         for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
           for (const char* part : {".weight", ".weight_scale_inv"}) {
             exchange(copy, p + "2.mlp.experts.2." + matrix + part, p + "2.mlp.experts.10." + matrix + part);
           }
         }
       }},
      {"shards", 1,
       [&](const auto& copy) {
         const std::string table = p + "1.ple.ple_embedding.ngram_embedding.shard_";
         exchange(copy, table + "2.weight", table + "10.weight");
       }},
      {"scales", 0,
       [&](const auto& copy) {
         const std::string scales = p + "0.mlp.experts.0.gate_proj.weight_scale_inv";  // [2, 3]
         std::vector<std::byte> bytes = fixtures::read_safetensors(copy.weights()).at(scales).bytes;
         REQUIRE(bytes.size() == 12);
         std::swap_ranges(bytes.begin() + 2, bytes.begin() + 4, bytes.begin() + 6);  // (0, 1) and (1, 0)
         fixtures::patch_tensor(copy.weights(), scales, 0, bytes);
       }},
  };
  for (const Defect& defect : defects) {
    INFO(defect.name);
    const fixtures::CheckpointCopy copy(directory);
    defect.apply(copy);
    const auto out = scratch.path() / defect.name;
    std::vector<std::string> arguments = {"verify", copy.directory(), "--out", out};
    add_dumps_of_reference(arguments, first);
    const RunResult run = kalibri_program(arguments);
    CHECK(run.exit_status == 1);
    const json report = report_of(out);
    CHECK(report.at("verdict").at("status") == "fell_short");
    std::int64_t n_fallen = 0;
    for (const json& row : report.at("comparisons").at("teacher_forced").at("rows")) {
      if (row.at("status") != "fell_short") continue;
      CHECK(row.at("layer") == defect.layer);
      ++n_fallen;
    }
    CHECK(n_fallen > 0);
  }
}

TEST_CASE("the output gates sigmoid and silu differ, and an absent one is silu to the bit, on both sides") {
  const fixtures::TempDirectory scratch;
  const test::Tokens tokens{{"p", test::random_ids(40, 256)}};
  for (const test::Side side : test::kSides) {
    INFO(test::name(side));
    const auto logits = [&](const std::string& gate) {
      const auto directory = scratch.path() / (gate + "-gate");
      if (!std::filesystem::exists(directory)) {
        fixtures::make_qwen4_exp(directory, fixtures::qwen4_exp_tiny(), {.output_gate = gate});
      }
      const auto out = scratch.path() / (gate + test::name(side) + ".h5");
      const RunResult run = test::run_side(side, directory, tokens, out);
      INFO(run.err);
      REQUIRE(run.exit_status == 0);
      return dump::Reader(out).read_f64("p", "logits", 0, 40);
    };
    const std::vector<double> sigmoid = logits("sigmoid");
    const std::vector<double> silu = logits("silu");
    CHECK(logits("") == silu);
    std::size_t n_far = 0;
    for (std::size_t i = 0; i < silu.size(); ++i) n_far += std::abs(silu[i] - sigmoid[i]) > 0.1 ? 1U : 0U;
    CHECK(n_far > silu.size() / 2);
  }
}

TEST_CASE("verify holds on a prompt beyond the released budget of 2,048 tokens") {
  const fixtures::TempDirectory scratch;
  Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
  shape.indexer_budget = 2048;
  fixtures::make_qwen4_exp(scratch.path() / "long", shape, {});
  const auto tokens = scratch.path() / "tokens.json";
  fixtures::write_file(tokens, json(test::Tokens{{"long", test::random_ids(2300, 256)}}).dump());
  const auto out = scratch.path() / "out";
  const RunResult run = kalibri_program(
      {"verify", scratch.path() / "long", "--tokens", tokens, "--out", out, "--positions", "0-15,2040-2299"});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  const dump::Reader engine(out / "engine.h5");
  CHECK(engine.find("long", "logits")->shape == std::vector<std::int64_t>{276, 256});
  const auto blocks = engine.read_i64("long", "layers/03/taps/selected_blocks", 0, 2300);
  CHECK(blocks == dump::Reader(out / "reference.h5").read_i64("long", "layers/03/taps/selected_blocks", 0, 2300));
  std::vector<std::int64_t> first_ones(512);
  std::iota(first_ones.begin(), first_ones.end(), 0);
  CHECK(std::equal(first_ones.begin(), first_ones.end(), blocks.begin() + 2050 * 512));        // dense up to here
  CHECK_FALSE(std::equal(first_ones.begin(), first_ones.end(), blocks.begin() + 2299 * 512));  // a choice
}

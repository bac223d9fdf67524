// The harness would have noticed: each deliberate defect of kalibri-mutants turns at least one check of `verify` red on
// at least one golden set, first in the layer that upstream's own controls name. Prints the table defect x check.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using fixtures::RunResult;
using nlohmann::json;

namespace {

const std::string kBin = KALIBRI_BIN_DIR;
constexpr double kMoved = 1e-4;  // the golden sets' own measure: first_layer_rel_gt_1e4

/// Golden ids as a prompt, and the reference's three dumps of it.
struct Fixture {
  std::string set;
  std::filesystem::path directory, tokens, reference, reference64, teacher_forced64;
  json meta;
};

void run_reference(const Fixture& fixture, const std::filesystem::path& out, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"run", fixture.directory, "--tokens", fixture.tokens, "-o", out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const RunResult run = fixtures::run_program(kBin + "/kalibri-reference", arguments);
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
}

std::optional<Fixture> prepare(const std::string& set, const fixtures::TempDirectory& scratch) {
  const auto directory = fixtures::find_golden(set);
  if (!directory.has_value()) return std::nullopt;
  Fixture fixture;
  fixture.set = set;
  fixture.directory = *directory;
  const auto path = [&](const char* name) { return scratch.path() / (set + name); };
  const auto golden = fixtures::read_safetensors(*directory / "golden.safetensors");
  fixture.tokens = path(".json");
  fixtures::write_file(fixture.tokens, json{{"golden", golden.at("input_ids").integers()}}.dump());
  fixture.reference = path("-r.h5");
  fixture.reference64 = path("-r64.h5");
  fixture.teacher_forced64 = path("-tf64.h5");
  fixture.meta = json::parse(fixtures::read_file(*directory / "meta.json"));
  run_reference(fixture, fixture.reference, {});
  run_reference(fixture, fixture.reference64, {"--dtype", "f64"});
  run_reference(fixture, fixture.teacher_forced64,
                {"--dtype", "f64", "--mode", "teacher-forced", "--inputs", fixture.reference});
  return fixture;
}

struct Outcome {
  int exit_status = -1;
  std::set<std::string> red;                // ids of the findings that fell short
  std::optional<std::int64_t> first_layer;  // teacher-forced, whose residual falls short
  std::optional<std::int64_t> first_moved;  // chained, whose residual moves by rel > kMoved
};

/// `verify` with one defect (none when empty) on one fixture.
Outcome verify(const Fixture& fixture, const std::string& mutant, const fixtures::TempDirectory& scratch) {
  const auto out = scratch.path() / "report";
  std::filesystem::remove_all(out);
  std::vector<std::string> arguments;
  if (!mutant.empty()) arguments = {"--mutant", mutant};
  const std::vector<std::string> rest = {"verify",        fixture.directory,
                                         "--tokens",      fixture.tokens,
                                         "--reference",   fixture.reference,
                                         "--reference64", fixture.reference64,
                                         "--reference64", fixture.teacher_forced64,
                                         "--precision",   "exact",
                                         "--out",         out,
                                         "--json"};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  const RunResult run = fixtures::run_program(kBin + "/kalibri-mutants", arguments);
  INFO(mutant << " on " << fixture.set << "\n" << run.err);
  REQUIRE((run.exit_status == 0 || run.exit_status == 1));
  Outcome outcome;
  outcome.exit_status = run.exit_status;
  const json report = json::parse(run.out);
  for (const json& finding : report.at("findings")) {
    if (finding.at("status") == "fell_short") outcome.red.insert(finding.at("id").get<std::string>());
  }
  const auto first = [](const json& rows, auto&& is_bad) {
    std::optional<std::int64_t> layer;
    for (const json& row : rows) {
      const auto number = row.at("layer").get<std::int64_t>();
      if (is_bad(row)) layer = std::min(number, layer.value_or(number));
    }
    return layer;
  };
  const json& comparisons = report.at("comparisons");
  outcome.first_layer = first(comparisons.at("teacher_forced").at("rows"),
                              [](const json& row) { return row.at("status") == "fell_short"; });
  outcome.first_moved =
      first(comparisons.at("chained").at("rows"), [](const json& row) { return row.at("rel") > kMoved; });
  return outcome;
}

const std::vector<std::string> kDefects = {"window_minus_1",
                                           "window_plus_1",
                                           "no_window",
                                           "window_on_full_layers",
                                           "rope_on_full_layers",
                                           "no_rope_at_all",
                                           "rope_interleaved",
                                           "rope_before_qk_norm",
                                           "rope_theta_1e6",
                                           "qk_norm_flat",
                                           "no_qk_norm",
                                           "gqa_modulo",
                                           "attn_scale_1",
                                           "norm_one_plus_w",
                                           "eps_1e-5",
                                           "eps_zero",
                                           "swap_post_norm_names",
                                           "norm_after_residual_add",
                                           "no_post_attn_norm",
                                           "no_post_ffn_norm",
                                           "post_ffn_norm_routed_only",
                                           "no_final_norm",
                                           "select_sigmoid_plus_bias",
                                           "select_without_bias",
                                           "weights_biased",
                                           "weights_renormalised",
                                           "weights_softmax",
                                           "top_k_minus_1",
                                           "router_logits_bf16",
                                           "router_input_bf16",
                                           "biased_sum_bf16",
                                           "shared_expert_omitted",
                                           "swap_gate_up",
                                           "act_gelu",
                                           "layer_types_full_first",
                                           "tied_lm_head",
                                           "embed_scale_sqrt_h"};
const std::vector<std::string> kFp8Defects = {"fp8_divide",          "fp8_no_scale", "fp8_scale_row0_only",
                                              "fp8_scale_col0_only", "fp8_block_64", "fp8_dequant_to_bf16",
                                              "fp8_flush_subnormals"};

/// Where upstream's control first moves a layer by more than 1e-4; nothing when it moves none, or was not measured
/// there.
std::optional<std::int64_t> first_layer_upstream(const Fixture& fixture, const std::string& defect) {
  const auto& controls = fixture.meta.at("negative_controls");
  const auto control = controls.find(defect);
  if (control == controls.end() || !control->contains("first_layer_rel_gt_1e4")) return std::nullopt;
  const json& layer = (*control)["first_layer_rel_gt_1e4"];
  return layer.is_null() ? std::nullopt : std::optional(layer.get<std::int64_t>());
}

}  // namespace

TEST_CASE("Every deliberate defect of Kolibri 1 turns a check of verify red, first in the layer that it moves") {
  const fixtures::TempDirectory scratch;
  std::vector<Fixture> prepared;
  for (const char* set : {"kolibri1-k1", "kolibri1-k2", "kolibri1-k1-fp8", "kolibri1-k2-fp8"}) {
    auto fixture = prepare(set, scratch);
    if (!fixture.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    prepared.push_back(*fixture);
    CHECK(verify(prepared.back(), "", scratch).red.empty());
  }
  std::string table = "defect | set | first layer: falls short, moves by 1e-4, upstream's moves | red checks\n";
  const auto check = [&](const std::string& defect, std::size_t first_fixture) {
    bool is_seen = false;
    for (std::size_t i = first_fixture; i < first_fixture + 2; ++i) {
      const Fixture& fixture = prepared[i];
      const Outcome outcome = verify(fixture, defect, scratch);
      const auto upstream = first_layer_upstream(fixture, defect);
      const auto layer_text = [](std::optional<std::int64_t> layer) {
        return layer ? std::to_string(*layer) : std::string("-");
      };
      table += fmt::format("{} | {} | {}, {}, {} |", defect, fixture.set, layer_text(outcome.first_layer),
                           layer_text(outcome.first_moved), layer_text(upstream));
      for (const std::string& id : outcome.red) table += " " + id;
      table += "\n";
      INFO(defect << " on " << fixture.set);
      CHECK((outcome.exit_status == 1) == !outcome.red.empty());
      is_seen = is_seen || !outcome.red.empty();
      if (fixture.meta.at("negative_controls").contains(defect)) CHECK(outcome.first_moved == upstream);
      // The bounds are far below kMoved: the layer is blamed no later than it moves. (embed_scale_sqrt_h is in no
      // layer.)
      if (upstream.has_value() && outcome.first_layer.has_value()) CHECK(*outcome.first_layer <= *upstream);
    }
    INFO(defect);
    CHECK(is_seen);
  };
  for (const std::string& defect : kDefects) check(defect, 0);
  for (const std::string& defect : kFp8Defects) check(defect, 2);
  WARN(table);
}

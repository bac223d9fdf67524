// The harness would have noticed: each deliberate defect of kalibri-mutants turns at least one check of `verify` red on
// at least one golden set, first in the layer that upstream's own controls name. Prints the table defect x check.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/cli/tests/mutant_runs.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"

using namespace kalibri;
using nlohmann::json;
using test::Fixture;
using test::Outcome;

namespace {

constexpr double kMoved = 1e-4;  // the golden sets' own measure: first_layer_rel_gt_1e4

json meta(const Fixture& fixture) { return json::parse(fixtures::read_file(fixture.directory / "meta.json")); }

/// The lowest layer among rows for which `is_bad` holds.
template <typename IsBad>
std::optional<std::int64_t> first_layer(const json& rows, IsBad&& is_bad) {
  std::optional<std::int64_t> layer;
  for (const json& row : rows) {
    const auto number = row.at("layer").get<std::int64_t>();
    if (is_bad(row)) layer = std::min(number, layer.value_or(number));
  }
  return layer;
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
  const json controls = meta(fixture).at("negative_controls");
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
    auto fixture = test::prepare(set, scratch);
    if (!fixture.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    prepared.push_back(*fixture);
    CHECK(test::verify(prepared.back(), "", scratch).red.empty());
  }
  std::string table = "defect | set | first layer: falls short, moves by 1e-4, upstream's moves | red checks\n";
  const auto check = [&](const std::string& defect, std::size_t first_fixture) {
    bool is_seen = false;
    for (std::size_t i = first_fixture; i < first_fixture + 2; ++i) {
      const Fixture& fixture = prepared[i];
      const Outcome outcome = test::verify(fixture, defect, scratch);
      const auto falls_short = first_layer(outcome.comparisons.at("teacher_forced").at("rows"),
                                           [](const json& row) { return row.at("status") == "fell_short"; });
      const auto moves = first_layer(outcome.comparisons.at("chained").at("rows"),
                                     [](const json& row) { return row.at("rel") > kMoved; });
      const auto upstream = first_layer_upstream(fixture, defect);
      const auto layer_text = [](std::optional<std::int64_t> layer) {
        return layer ? std::to_string(*layer) : std::string("-");
      };
      table += fmt::format("{} | {} | {}, {}, {} |", defect, fixture.set, layer_text(falls_short), layer_text(moves),
                           layer_text(upstream));
      for (const std::string& id : outcome.red) table += " " + id;
      table += "\n";
      INFO(defect << " on " << fixture.set);
      CHECK((outcome.exit_status == 1) == !outcome.red.empty());
      is_seen = is_seen || !outcome.red.empty();
      if (meta(fixture).at("negative_controls").contains(defect)) CHECK(moves == upstream);
      // The bounds are far below kMoved: the layer is blamed no later than it moves. (embed_scale_sqrt_h is in no
      // layer.)
      if (upstream.has_value() && falls_short.has_value()) CHECK(*falls_short <= *upstream);
    }
    INFO(defect);
    CHECK(is_seen);
  };
  for (const std::string& defect : kDefects) check(defect, 0);
  for (const std::string& defect : kFp8Defects) check(defect, 2);
  WARN(table);
}

TEST_CASE("Deliberate defects turn a check of verify red where every result is rounded to bf16 as well") {
  const fixtures::TempDirectory scratch;
  const auto found = test::find_fixture("kolibri1-k1", scratch);
  if (!found.has_value()) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  Fixture fixture = *found;
  fixture.precision = "bf16";
  fixture = test::with_reference_of(fixture, "bf16", fixture.directory, scratch);
  CHECK(test::verify(fixture, "", scratch).red.empty());
  for (const char* defect : {"window_minus_1", "rope_theta_1e6", "gqa_modulo", "eps_1e-5", "norm_after_residual_add",
                             "weights_biased", "shared_expert_omitted"}) {
    INFO(defect);
    CHECK_FALSE(test::verify(fixture, defect, scratch).red.empty());
  }
  // Rounded like all else, the router's logits are no further off than bf16's noise: that they are rounded shows it.
  CHECK(test::verify(fixture, "router_logits_bf16", scratch).red.contains("teacher-forced/rounding"));
}

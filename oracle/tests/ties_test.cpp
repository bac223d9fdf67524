// Differing expert sets and first tokens: what counts as a tie, what follows from one, and what does not.
#include <cmath>
#include <functional>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/compare/bands.hpp"
#include "oracle/tests/synthetic.hpp"
#include "oracle/verdict/judge_choices.hpp"
#include "oracle/verdict/judge_logits.hpp"
#include "oracle/verdict/rules.hpp"

using namespace kalibri;
using namespace kalibri::oracle;
using dump::layer_path;
using fixtures::TempDirectory;

namespace {

/// Reference, its fp64 run and a candidate, compared.
struct Compared {
  synthetic::Dump reference = synthetic::noisy(synthetic::exact("chained"), "reference", 1);
  synthetic::Dump f64 = synthetic::exact("chained");
  synthetic::Dump candidate = synthetic::noisy(synthetic::exact("chained"), "engine", 2);
  TempDirectory folder;
  Floor floor;
  DumpDifference difference;

  void run(RunMode mode) {
    const dump::Reader r = reference.write(folder.path(), "r.h5"), r64 = f64.write(folder.path(), "f.h5"),
                       c = candidate.write(folder.path(), "c.h5");
    floor = measure_floor(compare_dumps(r, r64, "floor"), mode);
    difference = compare_dumps(r, c, "check");
  }
  [[nodiscard]] Finding experts(RunMode mode) const {
    return experts_finding("check", judge_layers(difference, &floor, mode));
  }

  /// Token t of `layer` goes to another expert instead of that at `place`; the reference's gap there becomes `gap`.
  void swap_expert(std::int64_t layer, std::size_t t, std::size_t place, double gap) {
    auto& prompt = candidate.prompt("long");
    double& id = prompt.at(layer_path(layer, "expert_ids"), t, place);
    id = static_cast<double>((static_cast<std::int64_t>(id) + 1) % synthetic::kExperts);
    if (id == prompt.at(layer_path(layer, "expert_ids"), t, 1 - place))
      id = static_cast<double>((static_cast<std::int64_t>(id) + 1) % synthetic::kExperts);
    for (synthetic::Dump* dump : {&reference, &f64, &candidate})
      dump->prompt("long").at(layer_path(layer, "router_gap"), t, 0) = gap;
  }
};

}  // namespace

TEST_CASE(
    "A tie is one exchange of the k-th expert at a gap within the gap's noise, its row is not judged, others are") {
  Compared all;
  all.swap_expert(1, 7, 1, 1e-8);
  for (std::size_t j = 0; j < synthetic::kHidden; ++j)
    all.candidate.prompt("long").at(layer_path(1, "residual"), 7, j) += 1;
  all.run(RunMode::teacher_forced);
  REQUIRE(all.experts(RunMode::teacher_forced).status == Status::held);
  REQUIRE(all.experts(RunMode::teacher_forced).text.find("1 ties excused, largest gap 1.00e-08") != std::string::npos);
  const auto layers = judge_layers(all.difference, &all.floor, RunMode::teacher_forced);
  for (const JudgedLayer& layer : layers) {
    INFO(layer.layer->layer);
    REQUIRE(layer.find("residual", "rel_token_max")->status == Status::held);
  }
  all.candidate.prompt("long").at(layer_path(1, "residual"), 8, 0) += 1;
  all.run(RunMode::teacher_forced);
  REQUIRE(
      judge_layers(all.difference, &all.floor, RunMode::teacher_forced)[2].find("residual", "rel_token_max")->status ==
      Status::fell_short);
}

TEST_CASE("A wider gap, another expert than the k-th, or two exchanges are no tie") {
  const double noise = [] {
    Compared plain;
    plain.run(RunMode::teacher_forced);
    return plain.floor.find(1, "router_gap")->max_abs;
  }();
  const auto status_of = [](const std::function<void(Compared&)>& change) {
    Compared all;
    change(all);
    all.run(RunMode::teacher_forced);
    return all.experts(RunMode::teacher_forced);
  };
  REQUIRE(status_of([&](Compared& all) { all.swap_expert(1, 7, 1, 0.9 * kKappa * noise); }).status == Status::held);
  const Finding wide = status_of([&](Compared& all) { all.swap_expert(1, 7, 1, 1.1 * kKappa * noise); });
  REQUIRE(wide.status == Status::fell_short);
  REQUIRE(wide.where.layer == 1);
  REQUIRE(wide.where.position == 7);
  REQUIRE(status_of([](Compared& all) { all.swap_expert(1, 7, 0, 1e-8); }).status == Status::fell_short);
  REQUIRE(status_of([](Compared& all) {
            all.swap_expert(1, 7, 0, 1e-8);
            all.swap_expert(1, 7, 1, 1e-8);
          }).status == Status::fell_short);
  Compared without_floor;
  without_floor.swap_expert(1, 7, 1, 1e-8);
  without_floor.run(RunMode::teacher_forced);
  REQUIRE(experts_finding("check", judge_layers(without_floor.difference, nullptr, RunMode::teacher_forced)).status ==
          Status::fell_short);
}

TEST_CASE("In a chained run what follows a tie is counted, not judged, what does not follow is judged") {
  Compared all;
  all.swap_expert(0, 7, 1, 1e-8);  // the tie
  all.swap_expert(1, 7, 1, 0.5);   // same token, later layer: follows
  all.swap_expert(2, 12, 0, 0.5);  // later token, later layer: follows
  all.run(RunMode::chained);
  const Finding finding = all.experts(RunMode::chained);
  REQUIRE(finding.status == Status::held);
  REQUIRE(finding.text.find("2 more follow") != std::string::npos);
  REQUIRE(first_differing_token(all.difference.prompts[0]) == 7);
  all.swap_expert(1, 6, 1, 0.5);  // an earlier token: no tie explains it
  all.run(RunMode::chained);
  REQUIRE(all.experts(RunMode::chained).where.position == 6);
  Compared same_layer;
  same_layer.swap_expert(0, 7, 1, 1e-8);
  same_layer.swap_expert(0, 9, 1, 0.5);  // a later token of the same layer has the same inputs on both sides
  same_layer.run(RunMode::chained);
  REQUIRE(same_layer.experts(RunMode::chained).where.position == 9);
}

TEST_CASE("Chained logits are judged before the first differing token, and the rest is counted") {
  Compared all;
  all.swap_expert(0, 7, 1, 1e-8);
  all.candidate.prompt("long").at("logits", 7, 0) += 1;
  all.run(RunMode::chained);
  const Judged after = judge_logits(all.difference, &all.floor, RunMode::chained);
  for (const Finding& finding : after.findings) {
    INFO(finding.id);
    REQUIRE(finding.status == Status::held);
  }
  REQUIRE(after.rows[0].at("judged_positions") == 7);
  all.candidate.prompt("long").at("logits", 6, 0) += 1e-4;
  all.run(RunMode::chained);
  std::vector<std::string> short_ids;
  for (const Finding& finding : judge_logits(all.difference, &all.floor, RunMode::chained).findings) {
    if (finding.status == Status::fell_short) short_ids.push_back(finding.id);
  }
  REQUIRE(short_ids == std::vector<std::string>{"check/kl_mean", "check/kl_max", "check/max_abs_logit"});
}

TEST_CASE("Floors leave out tokens whose experts differ between fp32 and fp64, and count them") {
  Compared all;
  double& id = all.f64.prompt("long").at(layer_path(1, "expert_ids"), 7, 1);
  id = static_cast<double>((static_cast<std::int64_t>(id) + 1) % synthetic::kExperts);
  for (synthetic::Dump* dump : {&all.reference, &all.f64})
    dump->prompt("long").at(layer_path(1, "router_gap"), 7, 0) = 1e-8;
  for (std::size_t j = 0; j < synthetic::kHidden; ++j) all.f64.prompt("long").at(layer_path(1, "residual"), 7, j) += 1;
  all.run(RunMode::teacher_forced);
  REQUIRE(all.floor.tokens_left_out == 1);
  REQUIRE(all.floor.find(1, "residual")->rel_token_max < 1e-6);
  REQUIRE(all.floor.findings.back().status == Status::held);
  for (synthetic::Dump* dump : {&all.reference, &all.f64})
    dump->prompt("long").at(layer_path(1, "router_gap"), 7, 0) = 0.5;
  all.run(RunMode::teacher_forced);
  REQUIRE(all.floor.findings.back().status == Status::mistrusted);
}

TEST_CASE(
    "Another first token is a tie only where the reference's logits lie within the bound of the largest difference") {
  Compared all;
  all.run(RunMode::chained);
  const double bound = kKappa * all.floor.logits->max_abs_logit;
  const auto top1_with_gap = [](double gap) {
    Compared close;
    for (synthetic::Dump* dump : {&close.reference, &close.f64, &close.candidate}) {
      dump->prompt("long").at("logits", 3, 0) = 8 + (dump == &close.candidate ? 0 : gap);
      dump->prompt("long").at("logits", 3, 1) = 8 + (dump == &close.candidate ? gap : 0);
    }
    close.run(RunMode::chained);
    for (const Finding& finding : judge_logits(close.difference, &close.floor, RunMode::chained).findings) {
      if (finding.id == "check/top1") return finding;
    }
    return Finding{};
  };
  REQUIRE(top1_with_gap(std::floor(0.5 * bound / 0x1p-20) * 0x1p-20).status == Status::held);
  const Finding wide = top1_with_gap(0.01);
  REQUIRE(wide.status == Status::fell_short);
  REQUIRE(wide.where.position == 3);
}

TEST_CASE("Bands have their edges below the window, at it, and at the end") {
  using Bands = std::vector<std::pair<std::int64_t, std::int64_t>>;
  REQUIRE(band_edges(618, 513) == Bands{{0, 1}, {1, 4}, {4, 16}, {16, 64}, {64, 256}, {256, 513}, {513, 618}});
  REQUIRE(band_edges(513, 513) == Bands{{0, 1}, {1, 4}, {4, 16}, {16, 64}, {64, 256}, {256, 513}});
  REQUIRE(band_edges(20, 513) == Bands{{0, 1}, {1, 4}, {4, 16}, {16, 20}});
  REQUIRE(band_edges(19, 7) == Bands{{0, 1}, {1, 4}, {4, 7}, {7, 19}});
  REQUIRE(band_edges(19, 4) == Bands{{0, 1}, {1, 4}, {4, 19}});
  REQUIRE(band_edges(1, 7) == Bands{{0, 1}});
  REQUIRE(band_edges(300, 0) == Bands{{0, 1}, {1, 4}, {4, 16}, {16, 64}, {64, 256}, {256, 300}});
}

TEST_CASE("The KL of equal distributions stays within what float64 explains, and the rounding bound is small") {
  std::uint64_t state = 7;
  std::vector<double> row(1000), shifted(1000);
  for (std::size_t i = 0; i < row.size(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    row[i] = static_cast<double>(state >> 40) / 0x1p24 * 30;
    shifted[i] = row[i] + 5;  // the same distribution by other roundings
  }
  REQUIRE(std::abs(compare_logit_row(row, shifted, 0).kl) <= kl_rounding(1000));
  REQUIRE(kl_rounding(1000) < 1e-14);
}

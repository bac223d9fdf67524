// What is compared, worked out by hand: rows, streams, trimmed rows, chosen positions, likeliest tokens, bands; and the
// decode of another program.
#include <cmath>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/compare/bands.hpp"
#include "oracle/tests/synthetic.hpp"
#include "oracle/verdict/assess.hpp"
#include "oracle/verdict/floor.hpp"
#include "oracle/verdict/rules.hpp"

using namespace kalibri;
using namespace kalibri::oracle;
using Catch::Matchers::ContainsSubstring;
using dump::layer_path;
using fixtures::TempDirectory;

namespace {

const Finding& find(const std::vector<Finding>& findings, const std::string& id) {
  for (const Finding& finding : findings) {
    if (finding.id == id) return finding;
  }
  FAIL("no finding " << id);
  throw std::logic_error(id);
}

}  // namespace

TEST_CASE("Row errors are norms of the difference over norms of the reference, and 0 where both rows are 0") {
  const std::vector<double> h = {3, 4, 0, 0, 6, 8}, o = {3, 4.5, 0, 0, 6, 7};
  const TensorDifference difference = compare_rows(h, o, 2);
  REQUIRE(difference.row_rel == std::vector<double>{0.1, 0, 0.1});
  REQUIRE(difference.row_max_abs == std::vector<double>{0.5, 0, 1});
  REQUIRE(difference.reference_max_abs == 8);
  REQUIRE(*difference.metrics.rel_token_max == 0.1);
  REQUIRE(difference.row_rel_trimmed.empty());
  const std::vector<double> zero = {0, 0}, some = {0, 1};
  REQUIRE(std::isinf(compare_rows(zero, some, 2).row_rel[0]));
}

TEST_CASE("A trimmed row leaves out the eight largest channels of the reference on both sides") {
  std::vector<double> h(40, 1), o(40, 1.5);
  for (std::size_t j = 3; j < 11; ++j) h[j] = -1000, o[j] = -900;
  const TensorDifference difference = compare_rows(h, o, 40);
  REQUIRE(difference.row_rel_trimmed == std::vector<double>{0.5});
  REQUIRE(difference.row_rel[0] == Approx(0.1).epsilon(1e-4));
}

TEST_CASE("The worst row is the largest that is judged, and NaN is worse than any") {
  REQUIRE(worst_row({1, 3, 2}).row == 1);
  REQUIRE(worst_row({1, 3, 2}, {false, true, false}).row == 2);
  REQUIRE(worst_row({1, std::nan(""), 2}).row == 1);
  REQUIRE(worst_row({1, std::nan(""), 2}, {false, true, false}).row == 2);
  REQUIRE(worst_row({3}, {true}).row == -1);
}

TEST_CASE("With several streams rel is also given for each") {
  const TempDirectory folder;
  synthetic::Dump reference = synthetic::noisy(synthetic::exact("chained"), "reference", 1);
  reference.header.n_streams = 2;
  for (synthetic::PromptData& prompt : reference.prompts) {  // those rows have one stream's width
    prompt.datasets.erase("embedding");
    prompt.datasets.erase("final_norm");
  }
  synthetic::Dump candidate = reference;
  candidate.prompt("long").at(layer_path(1, "residual"), 2, synthetic::kHidden / 2) += 1;  // the second stream
  const dump::Reader r = reference.write(folder.path(), "r.h5"), c = candidate.write(folder.path(), "c.h5");
  const Assessment assessment = assess({.reference = &r, .chained = &c}, {}, 0);
  const auto& row = assessment.comparisons.at("chained").at("rows").at(2);
  REQUIRE(row.at("layer") == 1);
  REQUIRE(row.at("rel_per_stream").size() == 2);
  REQUIRE(row.at("rel_per_stream")[0] == 0);
  REQUIRE(row.at("rel_per_stream")[1] > 0.01);
}

TEST_CASE("Logits are compared at the positions that both sides have, and the others are not run") {
  const TempDirectory folder;
  const synthetic::Dump reference = synthetic::noisy(synthetic::exact("chained"), "reference", 1);
  synthetic::Dump candidate = reference;
  candidate.header.producer = "engine";
  auto& prompt = candidate.prompt("long");
  std::vector<double> chosen;
  for (const std::size_t position : std::vector<std::size_t>{0, 5, 6, 20}) {
    for (std::size_t v = 0; v < synthetic::kVocab; ++v) chosen.push_back(prompt.at("logits", position, v));
  }
  prompt.datasets["logits"].values = chosen;
  prompt.datasets["positions"] = {{}, {0, 5, 6, 20}, false};
  prompt.at("logits", 3, 7) += 0.5;  // position 20
  const dump::Reader r = reference.write(folder.path(), "r.h5"), c = candidate.write(folder.path(), "c.h5");
  const auto logits =
      compare_logit_rows(prefill_logits(r, *r.find_prompt("long")), prefill_logits(c, *c.find_prompt("long")));
  REQUIRE(logits->rows.size() == 4);
  REQUIRE(logits->rows[3].difference.position == 20);
  REQUIRE(logits->rows[3].bits_differ);
  REQUIRE(logits->metrics.max_abs_logit == Approx(0.5));
  for (const std::size_t i : std::vector<std::size_t>{0, 1, 2}) REQUIRE_FALSE(logits->rows[i].bits_differ);
  REQUIRE_THAT(find(compare_dumps(r, c, "x").findings, "x/complete").text,
               ContainsSubstring("the candidate lacks logits of long (position 1 and 16 more)"));
}

TEST_CASE(
    "A gap of exchanged first tokens is the reference's own distance between what is missed and what came instead") {
  const TempDirectory folder;
  synthetic::Dump reference = synthetic::exact("chained"), candidate = reference;
  for (synthetic::Dump* dump : {&reference, &candidate}) {
    for (std::size_t v = 0; v < synthetic::kVocab; ++v)
      dump->prompt("one").at("logits", 0, v) = -static_cast<double>(v);
  }
  candidate.prompt("one").at("logits", 0, 2) = 1;    // first, before 0
  candidate.prompt("one").at("logits", 0, 7) = 0.5;  // into the first five, instead of 4
  const dump::Reader r = reference.write(folder.path(), "r.h5"), c = candidate.write(folder.path(), "c.h5");
  const auto logits =
      compare_logit_rows(prefill_logits(r, *r.find_prompt("one")), prefill_logits(c, *c.find_prompt("one")));
  REQUIRE(logits->rows[0].top1_gap == 2);  // 0 - (-2)
  REQUIRE(logits->rows[0].top5_gap == 3);  // -4 - (-7)
  const auto ranked = likeliest(prefill_logits(r, *r.find_prompt("one")), 0, 2);
  REQUIRE(ranked.size() == 2);
  REQUIRE(ranked[1].first == 1);
  REQUIRE(ranked[0].second == Approx((1 - std::exp(-1.0)) / (1 - std::exp(-24.0))));
  REQUIRE(likeliest(prefill_logits(r, *r.find_prompt("one")), 3, 2).empty());
}

TEST_CASE("Bands hold means over their positions, and the reference's maxima at the first ones with the median") {
  const TempDirectory folder;
  synthetic::Dump reference = synthetic::exact("chained");
  auto& prompt = reference.prompt("long");
  for (const std::size_t t : std::vector<std::size_t>{0, 1, 2, 16, 17, 18, 19, 20}) {
    for (std::size_t j = 0; j < synthetic::kHidden; ++j) prompt.at(layer_path(0, "residual"), t, j) = 0;
    prompt.at(layer_path(0, "residual"), t, 3) = -static_cast<double>(t + 1);
  }
  for (std::size_t j = 0; j < synthetic::kHidden; ++j)
    prompt.at("embedding", 0, j) = j < 2 ? 3.0 + static_cast<double>(j) : 0;
  synthetic::Dump candidate = synthetic::noisy(reference, "engine", 2);
  const dump::Reader r = reference.write(folder.path(), "r.h5"), c = candidate.write(folder.path(), "c.h5");
  const dump::PromptInfo& info = *r.find_prompt("long");
  const auto logits = compare_logit_rows(prefill_logits(r, info), prefill_logits(c, info));
  const nlohmann::json bands = bands_of_prompt(r, info, 5, *logits, std::nullopt);
  REQUIRE(bands.at("bands").size() == 4);  // [0, 1) [1, 4) [4, 5) [5, 21)
  double sum = 0;
  for (std::size_t t = 1; t < 4; ++t) sum += logits->rows[t].difference.kl;
  REQUIRE(bands.at("bands")[1].at("kl_mean") == Approx(sum / 3));
  REQUIRE(bands.at("bands")[1].at("top1") == 1.0);
  REQUIRE(bands.at("bands")[1].at("decode_kl_mean").is_null());
  REQUIRE(bands.at("first_positions").size() == 8);
  REQUIRE(bands.at("embedding_norms")[0] == 5.0);
  const auto& layer = bands.at("residual_max")[0];
  REQUIRE(layer.at("first") == nlohmann::json{1.0, 2.0, 3.0});
  REQUIRE(layer.at("median_from_16") == 19.0);
}

TEST_CASE("Decode of another program is held to the reference's rounding, not to its bits") {
  const TempDirectory folder;
  const synthetic::Dump reference = synthetic::noisy(synthetic::exact("chained"), "reference", 1);
  synthetic::Dump decoded = synthetic::decoded(synthetic::noisy(synthetic::exact("chained"), "engine", 2));
  const dump::Reader r = reference.write(folder.path(), "r.h5"),
                     r64 = synthetic::exact("chained").write(folder.path(), "r64.h5");
  const auto judged = [&](const char* name, bool with_floor) {
    const dump::Reader d = decoded.write(folder.path(), name);
    return find(assess({.reference = &r, .reference_f64 = with_floor ? &r64 : nullptr, .decoded = &d}, {}, 0).findings,
                "decode/head");
  };
  REQUIRE(judged("good.h5", true).status == Status::held);
  REQUIRE(judged("none.h5", false).status == Status::mistrusted);
  decoded.prompt("long").at("decode/head/logits", 4, 0) += 0.01;
  REQUIRE(judged("bad.h5", true).status == Status::fell_short);
  REQUIRE(judged("bad2.h5", true).where.position == 4);
}

TEST_CASE("A floor of few tokens is filled in from the router's logits and from the noise of all logits") {
  const TempDirectory folder;
  synthetic::Dump reference = synthetic::exact("chained"), f64 = reference;  // no noise but what is put in
  f64.prompt("one").at(layer_path(0, "router_logits"), 0, 2) += 0.25;
  for (std::size_t v = 0; v < synthetic::kVocab; ++v) f64.prompt("long").at("logits", 0, v) += 0.5;  // no KL, but noise
  const dump::Reader r = reference.write(folder.path(), "r.h5"), r64 = f64.write(folder.path(), "f.h5");
  const Floor floor = measure_floor(compare_dumps(r, r64, "floor"), RunMode::teacher_forced);
  REQUIRE(floor.find(0, "router_gap")->max_abs == Approx(0.25));
  REQUIRE(floor.find(0, "expert_weights")->rel_token_max == Approx(0.25));
  REQUIRE(floor.find(1, "router_gap")->max_abs < 1e-5);
  REQUIRE(floor.logits->kl_noise() == Approx(0.25 / 22 / 2));  // one of 22 positions is off by 0.5
  REQUIRE(floor.logits->kl_max == Approx(0.25 / 22 / 2));
  REQUIRE(floor.logits->kl_mean <= 2 * kl_rounding(synthetic::kVocab));
}

// The blocks that sparse attention keeps: what agrees, what is a tie, what follows from one, and what nothing excuses.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/tests/synthetic.hpp"
#include "oracle/verdict/judge_choices.hpp"
#include "oracle/verdict/rules.hpp"

using namespace kalibri;
using namespace kalibri::oracle;
using Catch::Matchers::ContainsSubstring;
using dump::layer_path;
using fixtures::TempDirectory;

namespace {

const std::string kScores = layer_path(synthetic::kSparseLayer, "index_scores");
const std::string kSelected = layer_path(synthetic::kSparseLayer, "selected_blocks");

/// Reference, its fp64 run and a candidate, compared.
struct Sides {
  synthetic::Dump reference = synthetic::noisy(synthetic::exact("chained"), "reference", 1);
  synthetic::Dump f64 = synthetic::exact("chained");
  synthetic::Dump candidate = synthetic::noisy(synthetic::exact("chained"), "engine", 2);
  TempDirectory folder;
  Floor floor;
  DumpDifference difference;

  Finding judge(RunMode mode = RunMode::teacher_forced) {
    const dump::Reader r = reference.write(folder.path(), "r.h5"), r64 = f64.write(folder.path(), "f.h5"),
                       c = candidate.write(folder.path(), "c.h5");
    floor = measure_floor(compare_dumps(r, r64, "floor"), mode);
    difference = compare_dumps(r, c, "check");
    return blocks_finding("check", judge_layers(difference, &floor, mode));
  }

  /// The block at `place` of query t's row, and a complete one that neither side keeps.
  struct Pair {
    std::int64_t kept = 0, other = 0;
  };
  Pair pair(std::size_t t, std::size_t place) {
    Pair blocks{static_cast<std::int64_t>(reference.prompt("long").at(kSelected, t, place)), 0};
    const auto is_kept = [&](std::int64_t block) {
      for (std::size_t j = 0; j < synthetic::kKept; ++j) {
        for (synthetic::Dump* dump : {&reference, &candidate}) {
          if (dump->prompt("long").at(kSelected, t, j) == static_cast<double>(block)) return true;
        }
      }
      return false;
    };
    while (is_kept(blocks.other)) ++blocks.other;
    REQUIRE(blocks.other < (static_cast<std::int64_t>(t) + 1) / synthetic::kBlockSize);
    return blocks;
  }

  /// The candidate's query t keeps another block instead of that at `place`; in the reference's scores (and, but for
  /// its noise, in the others') the two lie `gap` apart.
  void exchange(std::size_t t, std::size_t place, double gap) {
    const Pair blocks = pair(t, place);
    for (synthetic::Dump* dump : {&reference, &f64, &candidate}) {
      dump->prompt("long").at(kScores, t, static_cast<std::size_t>(blocks.kept)) = 4;
      dump->prompt("long").at(kScores, t, static_cast<std::size_t>(blocks.other)) = 4 - gap;
    }
    candidate.prompt("long").at(kSelected, t, place) = static_cast<double>(blocks.other);
  }

  double noise() {
    judge();
    return block_noise(&floor, 1);
  }
};

Finding after(const std::function<void(Sides&)>& change) {
  Sides sides;
  change(sides);
  return sides.judge();
}

}  // namespace

TEST_CASE("The gap of exchanged blocks is the best missed score minus the worst kept instead") {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const std::vector<double> scores = {5, 4, 3, 2, 1};
  const std::vector<std::int64_t> ours = {0, 1, 2};
  const auto gap = [&](const std::vector<std::int64_t>& theirs) { return exchanged_gap(ours, theirs, scores); };
  CHECK(gap({0, 1, 3}) == 1);
  CHECK(gap({1, 3, 4}) == 4);  // misses 5 and 3, keeps 2 and 1
  CHECK(gap({0, 1}) == kNone);
  CHECK(gap({0, 1, 2, 3}) == kNone);
  CHECK(gap({0, 1, 1}) == kNone);
  CHECK(gap({0, 1, 5}) == kNone);  // not complete
  CHECK(gap({0, 1, -2}) == kNone);
}

TEST_CASE("Queries with a choice are counted from the dumps alone, and equal blocks hold") {
  Sides sides;
  const Finding finding = sides.judge();
  CHECK(finding.status == Status::held);
  CHECK(finding.value == 0.0);
  CHECK_THAT(finding.text, ContainsSubstring("14 of 14 with a choice kept the same"));  // positions 7 to 20
  const LayerDifference& layer = sides.difference.prompts[0].layers[1];
  CHECK_FALSE(layer.selection->has_choice[6]);  // 3 complete blocks, 3 are kept
  CHECK(layer.selection->has_choice[7]);
  CHECK_FALSE(sides.difference.prompts[0].layers[0].selection);
  Sides row;
  row.exchange(9, 0, 0);
  row.exchange(12, 1, 1);
  row.judge();
  const nlohmann::json expected = {{"queries_with_choice", 14},  {"same_frac", 12.0 / 14},
                                   {"differing_queries", 2},     {"ties_excused", 1},
                                   {"largest_gap_excused", 0.0}, {"gap_bound", block_noise(&row.floor, 1)},
                                   {"status", "fell_short"}};
  for (const JudgedLayer& judged : judge_layers(row.difference, &row.floor, RunMode::teacher_forced)) {
    if (judged.layer->layer != 1 || judged.prompt->prompt != "long") continue;
    CHECK(layer_rows({judged})[0].at("blocks") == expected);
    CHECK(layer_rows({judged})[0].at("status") == "fell_short");
  }
}

TEST_CASE("A wrong block falls short, with its layer, prompt and position") {
  const Finding finding = after([](Sides& sides) { sides.exchange(12, 1, 0.5); });
  CHECK(finding.status == Status::fell_short);
  CHECK(finding.value == 1.0);
  CHECK(finding.where.layer == 1);
  CHECK(finding.where.prompt == "long");
  CHECK(finding.where.position == 12);
  CHECK(finding.where.tensor == "selected_blocks");
}

TEST_CASE("A tie is an exchange within the scores' measured noise, counted, with the largest gap") {
  const double noise = Sides().noise();
  CHECK(noise > 1e-7);
  CHECK(noise < 1e-4);
  const Finding tie = after([&](Sides& sides) {
    sides.exchange(9, 0, 0.5 * noise);
    sides.exchange(12, 1, 0.9 * noise);
  });
  CHECK(tie.status == Status::held);
  CHECK_THAT(tie.text, ContainsSubstring("12 of 14 with a choice") && ContainsSubstring("2 ties excused") &&
                           ContainsSubstring(fmt::format("{:.1e}", 0.9 * noise).substr(0, 3)));
  CHECK(after([&](Sides& sides) { sides.exchange(12, 1, 1.1 * noise); }).status == Status::fell_short);
}

TEST_CASE("Equal scores are a tie without a floor, and however many blocks are exchanged") {
  Sides sides;
  for (const std::size_t place : {std::size_t{0}, std::size_t{1}}) sides.exchange(20, place, 0);
  sides.judge();
  CHECK(blocks_finding("check", judge_layers(sides.difference, nullptr, RunMode::teacher_forced)).status ==
        Status::held);
  Sides apart;
  apart.exchange(20, 0, 1e-6);
  apart.judge();
  CHECK(blocks_finding("check", judge_layers(apart.difference, nullptr, RunMode::teacher_forced)).status ==
        Status::fell_short);
}

TEST_CASE("Nothing excuses a row that is no selection, also where there was no choice") {
  const auto change = [](std::size_t t, std::size_t place, double block) {
    return after([=](Sides& sides) { sides.candidate.prompt("long").at(kSelected, t, place) = block; }).status;
  };
  CHECK(change(12, 1, -1) == Status::fell_short);  // one fewer
  CHECK(change(3, 2, 0) == Status::fell_short);    // one twice, as a third of two complete ones
  CHECK(change(12, 2, 9) == Status::fell_short);   // not complete there
  CHECK(change(5, 0, -1) == Status::fell_short);   // all three are to be kept
  CHECK(change(12, 2, 1e6) == Status::fell_short);
}

TEST_CASE("Without a query that had a choice nothing is proved: mistrusted, and a difference falls short even so") {
  const auto shorten = [](Sides& sides) {
    for (synthetic::Dump* dump : {&sides.reference, &sides.f64, &sides.candidate})
      dump->prompts.erase(dump->prompts.begin());
  };
  const Finding finding = after(shorten);
  CHECK(finding.status == Status::mistrusted);
  CHECK_THAT(finding.text, ContainsSubstring("no query had a choice"));
  const auto drop_scores = [](Sides& sides) { sides.reference.prompt("long").datasets.erase(kScores); };
  CHECK(after(drop_scores).status == Status::mistrusted);
  CHECK(after([&](Sides& sides) {
          drop_scores(sides);
          sides.candidate.prompt("long").at(kSelected, 12, 0) = 5;
        }).status == Status::fell_short);
  const Finding absent = after([](Sides& sides) {
    for (synthetic::PromptData& prompt : sides.candidate.prompts) prompt.datasets.erase(kSelected);
  });
  CHECK(absent.status == Status::not_applicable);
}

TEST_CASE("A token whose blocks are a tie is not judged after them: neither its tensors nor its experts") {
  Sides sides;
  sides.exchange(12, 1, 0);
  auto& prompt = sides.candidate.prompt("long");
  for (const char* name : {"residual", "router_logits", "router_gap", "expert_weights"})
    prompt.at(layer_path(1, name), 12, 0) += 1;
  const double id = prompt.at(layer_path(1, "expert_ids"), 12, 0);
  prompt.at(layer_path(1, "expert_ids"), 12, 0) = prompt.at(layer_path(1, "expert_ids"), 12, 1);
  prompt.at(layer_path(1, "expert_ids"), 12, 1) = id == 7 ? 6 : 7;
  const auto judge = [&sides] {
    CHECK(sides.judge().status == Status::held);
    Status worst = Status::not_applicable;
    const auto layers = judge_layers(sides.difference, &sides.floor, RunMode::teacher_forced);
    for (const JudgedLayer& layer : layers) {
      for (const JudgedTensor& tensor : layer.tensors) worst = std::max(worst, tensor.status);
    }
    return std::max(worst, experts_finding("check", layers).status);
  };
  CHECK(judge() == Status::held);
  CHECK_THAT(experts_finding("check", judge_layers(sides.difference, &sides.floor, RunMode::teacher_forced)).text,
             ContainsSubstring("1 more follow"));
  prompt.at(layer_path(1, "residual"), 13, 0) += 1;
  CHECK(judge() == Status::fell_short);
  prompt.at(layer_path(1, "residual"), 13, 0) -= 1;
  prompt.at(kScores, 12, 0) += 1;  // scores come before the choice
  CHECK(judge() == Status::fell_short);
}

TEST_CASE("In a chained run what comes after other blocks is counted, not judged") {
  Sides sides;
  sides.exchange(12, 1, 0);
  sides.exchange(15, 1, 1);  // a later token of the same layer has the same inputs
  auto& prompt = sides.candidate.prompt("long");
  CHECK(sides.judge(RunMode::chained).where.position == 15);
  prompt.datasets[kSelected] = sides.reference.prompt("long").datasets.at(kSelected);
  sides.exchange(12, 1, 0);
  double& id = prompt.at(layer_path(2, "expert_ids"), 14, 0);  // a later layer's: follows
  id = static_cast<double>((static_cast<std::int64_t>(id) + 1) % synthetic::kExperts);
  CHECK(sides.judge(RunMode::chained).status == Status::held);
  CHECK(first_differing_token(sides.difference.prompts[0]) == 12);
  CHECK(experts_finding("check", judge_layers(sides.difference, &sides.floor, RunMode::chained)).status ==
        Status::held);
}

TEST_CASE(
    "Floors leave out tokens whose blocks differ between fp32 and fp64, and a difference beyond a tie is mistrusted") {
  for (const bool is_tie : {true, false}) {
    Sides sides;
    sides.exchange(12, 1, is_tie ? 0 : 1);
    std::swap(sides.f64.prompt("long").datasets[kSelected], sides.candidate.prompt("long").datasets[kSelected]);
    sides.f64.prompt("long").at(layer_path(1, "residual"), 12, 0) += 1;
    sides.judge();
    CHECK(sides.floor.tokens_left_out == 1);
    CHECK(sides.floor.find(1, "residual")->rel_token_max < 1e-6);
    CHECK(sides.floor.findings.back().status == (is_tie ? Status::held : Status::mistrusted));
  }
}

TEST_CASE("One other row of the n-gram table falls short, and dumps without any have no such finding") {
  Sides sides;
  sides.judge();
  const auto finding = [&] {
    return ngram_rows_finding("check", judge_layers(sides.difference, &sides.floor, RunMode::teacher_forced));
  };
  CHECK_FALSE(finding());
  const std::string path = layer_path(1, "ngram_rows");
  for (synthetic::Dump* dump : {&sides.reference, &sides.f64, &sides.candidate}) {
    for (synthetic::PromptData& prompt : dump->prompts) {
      const std::size_t n_values = 4 * prompt.tokens.size();
      prompt.datasets[path] = {{4}, std::vector<double>(n_values, 3e6), false};
    }
  }
  sides.judge();
  REQUIRE(finding());
  CHECK(finding()->status == Status::held);
  sides.candidate.prompt("long").at(path, 9, 2) += 1;
  sides.candidate.prompt("long").at(path, 9, 3) += 1;
  sides.judge();
  CHECK(finding()->status == Status::fell_short);
  CHECK(finding()->value == 1);
  CHECK(finding()->where.position == 9);
  CHECK_THAT(finding()->text, ContainsSubstring("1 of 22 tokens"));
}

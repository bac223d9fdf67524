// Judging where a precision rounds: what its text says, what most rows show, which numbers are bf16's, and floors that
// one number on the other side of a rounding does not collapse.
#include <bit>
#include <cmath>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/tests/synthetic.hpp"
#include "oracle/verdict/assess.hpp"
#include "oracle/verdict/floor.hpp"
#include "oracle/verdict/judge_rounding.hpp"
#include "oracle/verdict/rounding_unit.hpp"
#include "oracle/verdict/row_errors.hpp"
#include "oracle/verdict/rules.hpp"

using namespace kalibri;
using namespace kalibri::oracle;
using Catch::Matchers::ContainsSubstring;
using dump::layer_path;

namespace {

const std::vector<std::string> kLong = {"long", "longer"};

/// Reference, its fp64 and a candidate, teacher-forced, on two prompts of 21 tokens and one of one.
struct Case {
  synthetic::Dump f64 = with_two_long_prompts();
  synthetic::Dump reference = synthetic::noisy(f64, "reference", 1);
  synthetic::Dump candidate = synthetic::noisy(f64, "engine", 2);

  static synthetic::Dump with_two_long_prompts() {
    synthetic::Dump dump = synthetic::exact("teacher-forced");
    dump.prompts.push_back(dump.prompt("long"));
    dump.prompts.back().name = "longer";
    return dump;
  }

  void set_precision(const std::string& precision) {
    for (synthetic::Dump* dump : {&f64, &reference, &candidate}) dump->header.precision = precision;
  }

  [[nodiscard]] Assessment run() const {
    const fixtures::TempDirectory folder;
    const dump::Reader r = reference.write(folder.path(), "r.h5"), r64 = f64.write(folder.path(), "r64.h5"),
                       c = candidate.write(folder.path(), "c.h5");
    return assess({.reference = &r, .teacher_forced_f64 = &r64, .teacher_forced = &c}, {}, 0);
  }

  [[nodiscard]] Finding finding(const std::string& id) const {
    for (const Finding& finding : run().findings) {
      if (finding.id == id) return finding;
    }
    FAIL("no finding " << id);
    return {};
  }
};

/// Multiplies rows [0, n) of `tensor` in both long prompts.
void scale_rows(synthetic::Dump& dump, const std::string& tensor, std::size_t n, double factor) {
  for (const std::string& name : kLong) {
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t j = 0; j < synthetic::kHidden; ++j) dump.prompt(name).at(tensor, row, j) *= factor;
    }
  }
}

void round_all(synthetic::Dump& dump, const std::string& tensor) {
  for (synthetic::PromptData& prompt : dump.prompts) {
    for (double& value : prompt.datasets.at(tensor).values) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      value = static_cast<double>(std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000));
    }
  }
}

}  // namespace

TEST_CASE("A precision's text says how coarsely it rounds, by its coarsest format") {
  for (const char* plain : {"", "native", "exact", "mixed-4-8", "dense=bf16,experts=affine:4:64", "someone's own"})
    CHECK(rounding_unit(plain) == 0);
  CHECK(rounding_unit("bf16") == 0x1p-8);
  CHECK(rounding_unit("production") == 0x1p-4);
  CHECK(rounding_unit("residual=bf16-fused,dense=f32") == 0x1p-8);
  CHECK(rounding_unit("dense=affine:8:64,activations=int16") == 0x1p-14);
  CHECK(rounding_unit("dense=affine:8:64,activations=int8") == 0x1p-6);
  CHECK(rounding_unit("compute=bf16-served,activations=fp8-dynamic,kv=bf16") == 0x1p-4);
}

TEST_CASE("The quartiles of rows are what a quarter lies below and a quarter above, NaN above all") {
  RowErrors errors;
  errors.add(3, "q", {5, 1, 4, 2}, {});
  errors.add(3, "q", {9, 3, 8, 6, 7}, {false, false, false, false, true});
  const RowErrors::Group& group = errors.groups().at({3, "q"});
  CHECK(group.rows.size() == 8);  // 1 2 3 4 5 6 8 9
  CHECK(group.lower_quartile() == 3);
  CHECK(group.upper_quartile() == 8);
  CHECK(group.n_largest_prompt == 4);
  RowErrors bad;
  bad.add(kNoLayer, "q", {std::nan(""), 1, std::nan(""), std::nan("")}, {});
  CHECK(std::isnan(bad.groups().at({kNoLayer, "q"}).lower_quartile()));
  CHECK(RowErrors::Group{}.lower_quartile() == 0);
}

TEST_CASE("What most rows are off by is judged by what most of the reference's are, whatever the largest error") {
  const std::string tensor = layer_path(1, "residual");
  const std::string precision = GENERATE("native", "bf16");
  CAPTURE(precision);
  Case all;
  all.set_precision(precision);
  CHECK(all.finding("teacher-forced/typical").status == Status::held);
  Case some = all;  // 32 of 43 rows are needed to reach the quartile
  scale_rows(some.candidate, tensor, 15, 1 + 1e-5);
  CHECK(some.finding("teacher-forced/typical").status == Status::held);
  Case most = all;
  scale_rows(most.candidate, tensor, 17, 1 + 1e-5);
  const Finding finding = most.finding("teacher-forced/typical");
  CHECK(finding.status == Status::fell_short);
  CHECK(finding.where.layer == 1);
  CHECK(finding.where.tensor == "residual");
  CHECK_THAT(finding.text, ContainsSubstring("three quarters of 43 rows"));
  // In f32 the largest error shows it, too; where a precision rounds, such an error alone may be chance.
  CHECK(most.finding("teacher-forced/residual").status == (precision == "native" ? Status::fell_short : Status::held));
}

TEST_CASE("Where a precision rounds, one prompt alone does not decide what is typical") {
  Case all;
  for (synthetic::Dump* dump : {&all.f64, &all.reference, &all.candidate}) dump->prompts.pop_back();
  for (double& value : all.candidate.prompt("long").datasets.at(layer_path(1, "residual")).values) value *= 1 + 1e-5;
  CHECK(all.finding("teacher-forced/typical").status == Status::fell_short);
  all.set_precision("bf16");
  CHECK(all.finding("teacher-forced/typical").status == Status::not_applicable);
  all.set_precision("production");  // where single rows prove nothing either
  CHECK(all.finding("teacher-forced/typical").status == Status::mistrusted);
  all = Case{};
  all.set_precision("production");
  CHECK(all.finding("teacher-forced/typical").status == Status::held);
}

TEST_CASE("A looked-up row has no rounding to hide behind, and no number of layers lets another token's row pass") {
  Case all;
  all.set_precision("production");
  for (double& value : all.candidate.prompt("long").datasets.at("embedding").values) value *= 1.01;
  CHECK(all.finding("teacher-forced/embedding").status == Status::fell_short);

  DumpDifference deep;  // 400 layers: the unit's square root of them would be more than a row is large
  deep.prompts.resize(1);
  deep.prompts[0].layers.resize(400);
  CHECK(measure_floor(deep, RunMode::chained, 0x1p-4).unit == kLoosestRoundedChainedBound / kKappa);
  CHECK(measure_floor(deep, RunMode::chained, 0x1p-14).unit == 20 * 0x1p-14);
  CHECK(measure_floor(deep, RunMode::teacher_forced, 0x1p-4).unit == 0x1p-4);
}

TEST_CASE("A row rounded the other way passes where the precision rounds, in any layer, and twice the bound does not") {
  const std::string tensor = layer_path(0, "residual");
  const auto status_with_row_off_by = [&](const Case& start, double error) {
    Case all = start;
    for (std::size_t j = 0; j < synthetic::kHidden; ++j)
      all.candidate.prompt("long").at(tensor, 4, j) = all.reference.prompt("long").at(tensor, 4, j) * (1 + error);
    return all.finding("teacher-forced/residual").status;
  };
  Case all;
  CHECK(status_with_row_off_by(all, 0x1p-8) == Status::fell_short);
  all.set_precision("bf16");
  CHECK(status_with_row_off_by(all, 0x1p-8) == Status::held);
  CHECK(status_with_row_off_by(all, 1.9 * kKappa * 0x1p-8) == Status::fell_short);
  Case wide = all;  // the reference itself shows more, in another layer
  for (std::size_t j = 0; j < synthetic::kHidden; ++j)
    wide.f64.prompt("long").at(layer_path(2, "residual"), 7, j) *= 1.01;
  CHECK(status_with_row_off_by(wide, 1.9 * kKappa * 0x1p-8) == Status::held);
  CHECK(status_with_row_off_by(wide, 1.1 * kKappa * 0.01) == Status::fell_short);
}

TEST_CASE("A floor where the precision rounds is trusted by what most rows show") {
  const std::string tensor = layer_path(2, "residual");
  const auto trust_with_rows_off_by = [&](std::size_t n, double error) {
    Case all;
    all.set_precision("bf16");
    scale_rows(all.f64, tensor, n, 1 + error);
    return all.finding("floor-teacher-forced/floor");
  };
  CHECK(trust_with_rows_off_by(5, 0.5).status == Status::held);
  CHECK(trust_with_rows_off_by(21, 0.9 * kLoosestRoundedBound / kKappa).status == Status::held);
  const Finding loose = trust_with_rows_off_by(21, 1.1 * kLoosestRoundedBound / kKappa);
  CHECK(loose.status == Status::mistrusted);
  CHECK(loose.where.layer == 2);
}

TEST_CASE("A floor of two precisions is mistrusted") {
  Case all;
  all.f64.header.precision = "bf16";
  CHECK(all.finding("floor-teacher-forced/origin").status == Status::mistrusted);
  CHECK_THAT(all.finding("floor-teacher-forced/origin").text, ContainsSubstring("of precisions 'native' and 'bf16'"));
  all.set_precision("bf16");
  CHECK(all.finding("floor-teacher-forced/origin").status == Status::held);
}

TEST_CASE("Numbers that were not rounded, or that should not have been, are seen by their bits") {
  const std::string tensor = layer_path(1, "router_logits");
  Case all;
  CHECK(all.finding("teacher-forced/rounding").status == Status::held);
  Case rounded = all;  // a router in bf16
  round_all(rounded.candidate, tensor);
  const Finding router = rounded.finding("teacher-forced/rounding");
  CHECK(router.status == Status::fell_short);
  CHECK(router.where.layer == 1);
  CHECK(router.where.tensor == "router_logits");
  CHECK_THAT(router.text, ContainsSubstring("0 of 344 numbers need more than bf16, but 344 of the reference's"));
  round_all(rounded.reference, tensor);
  CHECK(rounded.finding("teacher-forced/rounding").status == Status::held);
  CHECK_THAT(rounded.finding("teacher-forced/rounding").text, ContainsSubstring("1 tensors are rounded to bf16"));
  Case missing = all;  // a rounding that is missing; one number is enough
  round_all(missing.reference, tensor);
  round_all(missing.candidate, tensor);
  missing.candidate.prompt("longer").at(tensor, 3, 2) *= 1 + 1e-6;
  const Finding one = missing.finding("teacher-forced/rounding");
  CHECK(one.status == Status::fell_short);
  CHECK_THAT(one.text, ContainsSubstring("1 of 344 numbers need more than bf16, but 0 of the reference's"));
  Case logits = all;
  round_all(logits.candidate, "logits");
  CHECK(logits.finding("teacher-forced/rounding").where.tensor == "logits");
}

TEST_CASE("Zeros, powers of two and few numbers do not tell whether they were rounded") {
  FormatCount format;
  format.add(std::vector<double>{0, -1, 0.25, 3, 1 + 0x1p-8, 1 + 0x1p-7, 0x1p-130 * 3, std::nan("")},
             std::vector<double>{0, 1, 1 + 0x1p-23, -5});
  CHECK(format.n_telling == 3);
  CHECK(format.n_reference_wider == 1);
  CHECK(format.n_candidate_wider == 1);
  const auto status_of = [](std::vector<double> reference, std::vector<double> candidate) {
    DumpDifference difference{"check", {}, {}};
    difference.prompts.push_back({"p", 1, {}, {}, {}});
    difference.prompts.back().tensors["embedding"] =
        compare_rows(reference, candidate, static_cast<std::int64_t>(reference.size()));
    return rounding_finding(difference).status;
  };
  const std::vector<double> threes(7, 3.0), wide(7, 1 + 0x1p-20);
  CHECK(status_of(threes, wide) == Status::not_applicable);
  CHECK(status_of(std::vector<double>(8, 3.0), std::vector<double>(8, 1 + 0x1p-20)) == Status::fell_short);
  CHECK(status_of(std::vector<double>(8, 1.0), std::vector<double>(8, 1 + 0x1p-20)) == Status::not_applicable);
}

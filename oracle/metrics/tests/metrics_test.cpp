// Each metric on a case that is worked out by hand in the comments.
#include <algorithm>
#include <cmath>
#include <limits>

#include "fixtures/catch.hpp"
#include "oracle/metrics/logits.hpp"
#include "oracle/metrics/routes.hpp"
#include "oracle/metrics/rows.hpp"

namespace {

using namespace kalibri::oracle;
using Rows = std::vector<std::vector<double>>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// The cases below take at most a dozen operations on numbers of size 1, each rounded by half an epsilon or less, on
/// either side of the comparison.
bool same_but_for_rounding(std::optional<double> value, double expected) {
  return value && std::abs(*value - expected) <= 12 * std::numeric_limits<double>::epsilon();
}

std::vector<RowDifference> compare(const Rows& reference, const Rows& candidate) {
  std::vector<RowDifference> rows;
  for (std::size_t t = 0; t < reference.size(); ++t) {
    rows.push_back(compare_row(reference[t], candidate[t], static_cast<std::int64_t>(t)));
  }
  return rows;
}

std::vector<LogitRowDifference> compare_logits(const Rows& reference, const Rows& candidate) {
  std::vector<LogitRowDifference> rows;
  for (std::size_t t = 0; t < reference.size(); ++t) {
    rows.push_back(compare_logit_row(reference[t], candidate[t], static_cast<std::int64_t>(t)));
  }
  return rows;
}

bool all_nan(std::initializer_list<std::optional<double>> values) {
  return std::ranges::all_of(values, [](const auto& value) { return value && std::isnan(*value); });
}

}  // namespace

TEST_CASE("max_abs, mean_abs, rel, rel_token_max and cos_last are what one gets by hand") {
  // h = (3 4) (0 0) (1 2), o = (3 5) (0 0) (2 2), o - h = (0 1) (0 0) (1 0).
  const TensorMetrics metrics = summarise(compare({{3, 4}, {0, 0}, {1, 2}}, {{3, 5}, {0, 0}, {2, 2}}));
  CHECK(metrics.n_rows == 3);
  CHECK(metrics.max_abs == 1);  // in rows 0 and 2: the first is named
  CHECK(metrics.max_abs_position == 0);
  CHECK(metrics.mean_abs == 2.0 / 6);                              // 2 of 6 elements are off by 1
  CHECK(same_but_for_rounding(metrics.rel, std::sqrt(2.0 / 30)));  // |o-h|^2 = 1 + 1, |h|^2 = 9 + 16 + 1 + 4
  // Row 0: 1/5. Row 1: both are zero, no ratio. Row 2: 1/sqrt 5.
  CHECK(same_but_for_rounding(metrics.rel_token_max, 1 / std::sqrt(5.0)));
  CHECK(metrics.rel_token_max_position == 2);
  CHECK(same_but_for_rounding(metrics.cos_last, 6 / std::sqrt(8.0 * 5)));  // (2 2).(1 2) = 6, |o|^2 = 8, |h|^2 = 5
  CHECK_FALSE(metrics.not_finite.has_value());
}

TEST_CASE("One large row hides an error from rel, not from rel_token_max") {
  // Row 0 is a sink of norm 1000, row 1 is all wrong: rel = 1 / sqrt(1000^2 + 1), rel_token_max = 1.
  const TensorMetrics metrics = summarise(compare({{1000, 0}, {1, 0}}, {{1000, 0}, {0, 0}}));
  CHECK(same_but_for_rounding(metrics.rel, 1 / std::sqrt(1'000'001.0)));
  CHECK(metrics.rel_token_max == 1);
  CHECK(metrics.rel_token_max_position == 1);
}

TEST_CASE("Two opposite errors do not cancel, and the cosine keeps its sign") {
  const TensorMetrics metrics = summarise(compare({{1, 1}}, {{-1, -1}}));
  CHECK(metrics.mean_abs == 2);
  CHECK(metrics.rel == 2);
  CHECK(same_but_for_rounding(metrics.cos_last, -1));
}

TEST_CASE("A metric without a meaning is absent: zero norms, no rows, no elements") {
  const TensorMetrics zero_reference = summarise(compare({{0, 0}}, {{3, 4}}));
  CHECK(zero_reference.max_abs == 4);
  CHECK(zero_reference.mean_abs == 3.5);
  CHECK_FALSE(zero_reference.rel.has_value());
  CHECK_FALSE(zero_reference.cos_last.has_value());
  CHECK(zero_reference.rel_token_max == kInf);  // something where nothing should be: above every bound

  const TensorMetrics zero_both = summarise(compare({{0, 0}}, {{0, 0}}));
  CHECK(zero_both.max_abs == 0);
  CHECK_FALSE(zero_both.rel.has_value());
  CHECK_FALSE(zero_both.rel_token_max.has_value());
  CHECK_FALSE(zero_both.cos_last.has_value());

  const TensorMetrics zero_candidate = summarise(compare({{3, 4}}, {{0, 0}}));
  CHECK(zero_candidate.rel == 1);
  CHECK_FALSE(zero_candidate.cos_last.has_value());

  for (const TensorMetrics& empty :
       {summarise(std::span<const RowDifference>()), summarise(compare({{}, {}}, {{}, {}}))}) {
    CHECK_FALSE(empty.max_abs.has_value());
    CHECK_FALSE(empty.mean_abs.has_value());
    CHECK_FALSE(empty.rel.has_value());
    CHECK_FALSE(empty.rel_token_max.has_value());
    CHECK_FALSE(empty.cos_last.has_value());
  }
}

TEST_CASE("A value that is not finite, on either side, is named with its place and leaves no metric that could hold") {
  for (const double bad : {kNan, kInf, -kInf}) {
    for (const bool in_reference : {true, false}) {
      Rows reference = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
      Rows candidate = reference;
      (in_reference ? reference : candidate)[1][2] = bad;
      const TensorMetrics metrics = summarise(compare(reference, candidate));
      REQUIRE(metrics.not_finite.has_value());
      CHECK(metrics.not_finite->position == 1);
      CHECK(metrics.not_finite->element == 2);
      CHECK(metrics.not_finite->in_reference == in_reference);
      CHECK(all_nan({metrics.max_abs, metrics.mean_abs, metrics.rel, metrics.rel_token_max, metrics.cos_last}));
    }
  }
  // The same infinity on both sides is no agreement.
  CHECK(summarise(compare({{kInf, 1}}, {{kInf, 1}})).not_finite.has_value());
  // Finite values whose squares are not: no norm, so no bound holds.
  const TensorMetrics huge = summarise(compare({{1e200, 0}, {1, 1}}, {{2e200, 0}, {1, 1}}));
  CHECK(huge.max_abs == 1e200);
  CHECK(all_nan({huge.rel, huge.rel_token_max}));
  CHECK(huge.rel_token_max_position == 0);
}

TEST_CASE("hidden_rel is rel of the final norm's rows") {
  // f = (2 0) (0 1), x = (2 1) (0 1): 1 / sqrt(4 + 1).
  CHECK(same_but_for_rounding(summarise(compare({{2, 0}, {0, 1}}, {{2, 1}, {0, 1}})).rel, 1 / std::sqrt(5.0)));
}

TEST_CASE("A band's metrics are those of its rows alone") {
  const auto rows = compare({{1, 0}, {2, 0}, {4, 0}, {8, 0}}, {{2, 0}, {2, 0}, {5, 0}, {8, 0}});
  const TensorMetrics band = summarise(std::span(rows).subspan(1, 2));  // (2 0) (4 0) against (2 0) (5 0)
  CHECK(band.n_rows == 2);
  CHECK(band.max_abs_position == 2);
  CHECK(same_but_for_rounding(band.rel, 1 / std::sqrt(20.0)));
  CHECK(band.rel_token_max == 0.25);
}

TEST_CASE("KL is that of the reference against the candidate, in nats") {
  // p = (3/4 1/4), q = (1/2 1/2): 3/4 ln(3/2) + 1/4 ln(1/2) = 3/4 ln 3 - ln 2. The other way round: 1/2 ln(4/3).
  const std::vector<double> p = {std::log(3.0), 0};
  const std::vector<double> q = {0, 0};
  CHECK(same_but_for_rounding(compare_logit_row(p, q, 0).kl, 0.75 * std::log(3.0) - std::log(2.0)));
  CHECK(same_but_for_rounding(compare_logit_row(q, p, 0).kl, 0.5 * std::log(4.0 / 3)));
  // A constant added to all logits changes no probability; exp(700 + 100) alone would overflow.
  CHECK(same_but_for_rounding(compare_logit_row(std::vector<double>{800, 800}, q, 0).kl, 0));
  // p = (1 0) to the last bit: 1 (0 - ln 1/2) + 0 (-2000 - ln 1/2) = ln 2.
  CHECK(same_but_for_rounding(compare_logit_row(std::vector<double>{0, -2000}, q, 0).kl, std::log(2.0)));
}

TEST_CASE("log_softmax is the logarithm of probabilities that sum to one") {
  // exp: 1, 2, 5 of 8.
  const std::vector<double> result = log_softmax(std::vector<double>{0, std::log(2.0), std::log(5.0)});
  CHECK(same_but_for_rounding(result[0], -std::log(8.0)));
  CHECK(same_but_for_rounding(result[1], std::log(0.25)));
  CHECK(same_but_for_rounding(result[2], std::log(0.625)));
}

TEST_CASE("kl_mean, kl_p95, kl_max and worst_kl_pos summarise the positions") {
  const double a = 0.75 * std::log(3.0) - std::log(2.0);  // as above: about 0.131
  const double b = std::log(2.0);                         // p = (1 0), q = (1/2 1/2): about 0.693
  const std::vector<double> even = {0, 0};
  const auto rows = compare_logits({even, {0, -2000}, {std::log(3.0), 0}, {0, -2000}}, {even, even, even, even});
  const LogitMetrics metrics = summarise(rows);
  CHECK(metrics.n_positions == 4);
  CHECK(same_but_for_rounding(metrics.kl_mean, (0 + b + a + b) / 4));
  CHECK(same_but_for_rounding(metrics.kl_max, b));
  CHECK(metrics.worst_kl_pos == 1);  // tied with position 3
  // Sorted: 0, a, b, b; index 0.95 * 3 = 2.85 lies between b and b.
  CHECK(same_but_for_rounding(metrics.kl_p95, b));
  // Without position 3: 0, a, b; index 0.95 * 2 = 1.9: a + 0.9 (b - a).
  CHECK(same_but_for_rounding(summarise(std::span(rows).first(3)).kl_p95, a + 0.9 * (b - a)));
  CHECK(same_but_for_rounding(summarise(std::span(rows).subspan(2, 1)).kl_p95, a));
}

TEST_CASE("A percentile is linear between its neighbours") {
  CHECK(percentile(std::vector<double>{1, 3}, 0.5) == 2);
  CHECK(percentile(std::vector<double>{1, 3}, 0) == 1);
  CHECK(percentile(std::vector<double>{1, 3}, 1) == 3);
  CHECK(percentile(std::vector<double>{7}, 0.95) == 7);
  CHECK(percentile(std::vector<double>{0, 0, 0, 8, 16}, 0.875) == 12);  // index 3.5
}

TEST_CASE("KL below zero by rounding is reported as it is") {
  // Seven equal logits against the same ones plus a constant: KL is 0 but for rounding. Somewhere among these it is
  // below zero, which a clamp would hide.
  double least = 0;
  for (int i = 1; i <= 100; ++i) {
    std::vector<double> reference;
    std::vector<double> candidate;
    for (int v = 0; v < 7; ++v) {
      reference.push_back(0.37 * v * i);
      candidate.push_back(0.37 * v * i + 1.0 / 3);
    }
    least = std::min(least, compare_logit_row(reference, candidate, 0).kl);
  }
  CHECK(least < 0);
  CHECK(least > -1e-13);  // rounding, not an error of the formula
}

TEST_CASE("top1 and top5 count agreement, ties go to the lower id") {
  CHECK(top_k(std::vector<double>{1, 5, 3, 5, 5, 0}, 3) == std::vector<std::int64_t>{1, 3, 4});
  CHECK(top_k(std::vector<double>{2, 2, 2, 2}, 2) == std::vector<std::int64_t>{0, 1});
  CHECK(top_k(std::vector<double>{1, 2, 3}, 3) == std::vector<std::int64_t>{2, 1, 0});
  // Position 0: R prefers 0 1 2 3 4. Q is all equal, so 0 1 2 3 4 as well: agreement on all.
  // Position 1: R prefers 6 5 4 3 2. Q is all equal: 0 1 2 3 4 against 2 3 4 5 6, three of five; argmax 6 against 0.
  // Position 2: the same five in another order: 5 of 5, argmax 1 against 0.
  const std::vector<double> flat(7, 1.0);
  const LogitMetrics metrics = summarise(compare_logits(
      {{7, 6, 5, 4, 3, 2, 1}, {1, 2, 3, 4, 5, 6, 7}, {5, 4, 3, 2, 1, 0, 0}}, {flat, flat, {1, 9, 8, 7, 6, 0, 0}}));
  CHECK(same_but_for_rounding(metrics.top1, 1.0 / 3));
  CHECK(same_but_for_rounding(metrics.top5, (1 + 0.6 + 1) / 3));
  CHECK(metrics.max_abs_logit == 6);  // position 0: |1 - 7|

  const LogitRowDifference row = compare_logit_row(std::vector<double>{1, 2}, std::vector<double>{2, 2}, 9);
  CHECK(row.position == 9);
  CHECK(row.reference_top == 1);
  CHECK(row.candidate_top == 0);
  CHECK_FALSE(row.top1_same);
  CHECK(row.top5_share == 1);  // V = 2: the top five are both
  CHECK(row.max_abs == 1);
}

TEST_CASE("Logits that are not finite are named with their place and leave no metric that could hold") {
  for (const bool in_reference : {true, false}) {
    Rows reference = {{1, 2}, {3, 4}, {5, 6}};
    Rows candidate = reference;
    (in_reference ? reference : candidate)[2][0] = -kInf;
    const LogitMetrics metrics = summarise(compare_logits(reference, candidate));
    REQUIRE(metrics.not_finite.has_value());
    CHECK(metrics.not_finite->position == 2);
    CHECK(metrics.not_finite->element == 0);
    CHECK(metrics.not_finite->in_reference == in_reference);
    CHECK(metrics.worst_kl_pos == 2);
    CHECK(
        all_nan({metrics.top1, metrics.top5, metrics.kl_mean, metrics.kl_p95, metrics.kl_max, metrics.max_abs_logit}));
  }
  const LogitMetrics none = summarise(std::span<const LogitRowDifference>());
  CHECK_FALSE(none.top1.has_value());
  CHECK_FALSE(none.kl_mean.has_value());
  CHECK_FALSE(none.worst_kl_pos.has_value());
}

TEST_CASE("decode_max_diff looks at the last min(8, T - 1) positions") {
  CHECK(decode_tail(1) == 0);
  CHECK(decode_tail(2) == 1);
  CHECK(decode_tail(8) == 7);
  CHECK(decode_tail(9) == 8);
  CHECK(decode_tail(1000) == 8);
  // Ten positions; position t differs by 10 - t. The last eight are 2 … 9, the largest difference there is 8.
  Rows prefill;
  Rows decode;
  for (int t = 0; t < 10; ++t) {
    prefill.push_back({0, 1});
    decode.push_back({0, 1.0 + 10 - t});
  }
  const auto rows = compare_logits(prefill, decode);
  CHECK(decode_max_diff(rows, 10) == 8);
  CHECK(decode_max_diff(std::span(rows).last(8), 10) == 8);
  CHECK_FALSE(decode_max_diff(std::span(rows).last(7), 10).has_value());  // position 2 is missing: not known
  CHECK_FALSE(decode_max_diff(std::span(rows).first(1), 1).has_value());  // T = 1: nothing was decoded
  decode[5][1] = kNan;
  CHECK(std::isnan(decode_max_diff(compare_logits(prefill, decode), 10).value()));
}

TEST_CASE("Routes are compared as sets of all k ids") {
  // Token 0: the same three in another order. Token 1: 8 instead of 6. Token 2: equal. Token 3: all differ.
  const std::vector<std::int64_t> reference = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2};
  const std::vector<std::int64_t> candidate = {3, 1, 2, 4, 5, 8, 7, 8, 9, 3, 4, 5};
  const RouteMetrics metrics = compare_routes(reference, candidate, 3);
  CHECK(metrics.n_tokens == 4);
  CHECK(metrics.route_same_frac == 0.5);
  CHECK(metrics.route_diff_tokens == 2);
  CHECK(metrics.diff_positions == std::vector<std::int64_t>{1, 3});
  CHECK_FALSE(compare_routes({}, {}, 3).route_same_frac.has_value());
  // An id chosen twice is no set of two.
  CHECK(compare_routes(std::vector<std::int64_t>{1, 2}, std::vector<std::int64_t>{1, 1}, 2).route_diff_tokens == 1);
}

TEST_CASE("Weights pair up by expert id, whatever order a side wrote them in") {
  const std::vector<std::int64_t> ids = {7, 2, 5, 1, 0, 3};
  const std::vector<double> weights = {0.7, 0.2, 0.5, 0.1, 0.0, 0.3};
  CHECK(sort_weights_by_id(ids, weights, 3) == std::vector<double>{0.2, 0.5, 0.7, 0.0, 0.1, 0.3});
}

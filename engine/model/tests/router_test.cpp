// Routing worked out by hand, and the published rule against the usual one.
#include "engine/model/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fixtures/catch.hpp"

using kalibri::model::select_kolibri1;
using kalibri::model::select_top_k;
using kalibri::model::weigh_kolibri1;

namespace {

std::vector<std::int32_t> top_k(const std::vector<float>& scores, std::int64_t k, float* gap = nullptr) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(k));
  const float g = select_top_k(scores, k, ids.data());
  if (gap != nullptr) *gap = g;
  return ids;
}

/// Uniform in (-1, 1), the same numbers everywhere.
struct Numbers {
  std::uint64_t state = 0x9e3779b97f4a7c15U;
  float next() {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
  }
};

}  // namespace

TEST_CASE("The largest scores come first, equal ones by lower id, and the gap is the one behind the last") {
  float gap = 0;
  REQUIRE(top_k({1, 5, 3, 5, 2}, 3, &gap) == std::vector<std::int32_t>{1, 3, 2});
  REQUIRE(gap == 1.0F);
  REQUIRE(top_k({4, 4, 4}, 2, &gap) == std::vector<std::int32_t>{0, 1});
  REQUIRE(gap == 0.0F);
  REQUIRE(top_k({-1, -3}, 2, &gap) == std::vector<std::int32_t>{0, 1});
  REQUIRE(gap == std::numeric_limits<float>::infinity());
}

TEST_CASE("A NaN score is taken last and never loses the order of the others") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(top_k({nan, -5, nan, 7}, 3) == std::vector<std::int32_t>{3, 1, 0});
}

TEST_CASE("Selection uses the biased logit, the weight the unbiased one") {
  // logits 2, 1, 0; biases -3, 0, 2: biased -1, 1, 2, so experts 2 and 1, with weights sigmoid(0) and sigmoid(1).
  const std::vector<float> logits = {2, 1, 0};
  const std::vector<float> bias = {-3, 0, 2};
  std::vector<float> scratch(3);
  std::int32_t ids[2];
  float weights[2];
  REQUIRE(select_kolibri1(logits, bias, 2, ids, scratch) == 2.0F);
  weigh_kolibri1(logits, scratch, ids, weights);
  REQUIRE(ids[0] == 2);
  REQUIRE(ids[1] == 1);
  REQUIRE(weights[0] == 0.5F);
  REQUIRE(std::abs(static_cast<double>(weights[1]) - 1 / (1 + std::exp(-1.0))) < 1e-7);
}

TEST_CASE("384 experts: sets follow logit + bias and differ from sigmoid + bias") {
  Numbers numbers;
  int n_differ = 0;
  for (int token = 0; token < 64; ++token) {
    std::vector<float> logits(384);
    std::vector<float> bias(384);
    std::vector<float> usual(384);
    std::vector<float> scratch(384);
    for (std::size_t e = 0; e < 384; ++e) {
      logits[e] = 5 * numbers.next();
      bias[e] = 8 * numbers.next();
      usual[e] = 1 / (1 + std::exp(-logits[e])) + bias[e];
    }
    std::vector<std::int32_t> ids(6);
    std::vector<float> weights(6);
    select_kolibri1(logits, bias, 6, ids.data(), scratch);
    weigh_kolibri1(logits, scratch, ids, weights.data());
    std::vector<float> biased(384);
    for (std::size_t e = 0; e < 384; ++e) biased[e] = logits[e] + bias[e];
    REQUIRE(ids == top_k(biased, 6));
    for (std::size_t i = 0; i < 6; ++i) {
      const double exact = 1 / (1 + std::exp(-static_cast<double>(logits[static_cast<std::size_t>(ids[i])])));
      REQUIRE(std::abs(static_cast<double>(weights[i]) - exact) < 1e-6);
    }
    n_differ += top_k(usual, 6) != ids ? 1 : 0;
  }
  REQUIRE(n_differ > 32);
}

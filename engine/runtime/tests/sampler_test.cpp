// Which token is chosen: each option by hand, all of them against the plain definition, and the draw's statistics.
#include "engine/runtime/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "engine/base/error.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/generator.hpp"

namespace kalibri::runtime {
namespace {

using Catch::Matchers::ContainsSubstring;

const float kLn2 = std::log(2.0F);

/// Logits whose weights at temperature 1 are 8, 4, 2, 1, 1 (of 16).
const std::vector<float> kHalving = {3 * kLn2, 2 * kLn2, kLn2, 0, 0};

/// The ids that come up in many draws from the same row.
std::set<std::int32_t> drawn_ids(const SamplingOptions& options, std::span<const float> logits) {
  std::set<std::int32_t> ids;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SamplingOptions seeded = options;
    seeded.seed = seed;
    ids.insert(Sampler(seeded, {}).next(logits));
  }
  return ids;
}

using Ids = std::set<std::int32_t>;

std::vector<std::int32_t> sequence(const SamplingOptions& options, std::span<const std::int32_t> prompt,
                                   std::span<const float> logits, int n) {
  Sampler sampler(options, prompt);
  std::vector<std::int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(sampler.next(logits));
  return ids;
}

/// The definition, as plainly as it can be said: everything is sorted, nothing is saved.
class PlainSampler {
 public:
  PlainSampler(SamplingOptions options, const std::vector<std::int32_t>& prompt)
      : options_(std::move(options)), prompt_(prompt.begin(), prompt.end()) {}

  std::int32_t next(const std::vector<float>& logits) {
    std::vector<std::pair<double, std::int32_t>> order;  // (minus logit, id): sorted, the best comes first
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      double x = static_cast<double>(logits[i]);
      for (const auto& [biased, bias] : options_.logit_bias) x += biased == id ? bias : 0;
      const auto n = static_cast<double>(std::ranges::count(answer_, id));
      if (n > 0 || prompt_.contains(id)) {
        x = x > 0 ? x / options_.repetition_penalty : x * options_.repetition_penalty;
      }
      x -= options_.frequency_penalty * n;
      if (n > 0) x -= options_.presence_penalty;
      order.emplace_back(-x, id);
    }
    std::ranges::sort(order);
    const std::int32_t id = options_.temperature == 0 ? order.front().second : draw(order);
    answer_.push_back(id);
    return id;
  }

 private:
  std::int32_t draw(std::vector<std::pair<double, std::int32_t>> order) {
    const double best = order.front().first;
    const auto weight = [&](const auto& entry) {
      const double x = std::max((best - entry.first) / options_.temperature, -1000.0);
      return static_cast<double>(kernels::exp_f32(static_cast<float>(x)));
    };
    const auto sum_by_id = [&] {
      std::map<std::int32_t, double> weights;
      for (const auto& entry : order) weights[entry.second] = weight(entry);
      double sum = 0;
      for (const auto& [id, w] : weights) sum += w;
      return std::pair(sum, weights);
    };
    if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < order.size()) {
      order.resize(static_cast<std::size_t>(options_.top_k));
    }
    if (options_.top_p < 1) {
      const double wanted = options_.top_p * sum_by_id().first;
      std::size_t n = 0;
      double reached = 0;
      do reached += weight(order[n++]);
      while (reached < wanted && n < order.size());
      order.resize(n);
    }
    while (weight(order.back()) < options_.min_p) order.pop_back();
    const auto [sum, weights] = sum_by_id();
    const double target = random_unit(options_.seed, n_draws_++) * sum;
    double passed = 0;
    for (const auto& [id, w] : weights) {
      passed += w;
      if (passed > target) return id;
    }
    return -1;
  }

  SamplingOptions options_;
  std::set<std::int32_t> prompt_;
  std::vector<std::int32_t> answer_;
  std::uint64_t n_draws_ = 0;
};

/// Seeded choices.
struct Random {
  std::uint64_t seed;
  std::uint64_t n = 0;
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(fixtures::random_word(seed, n++) % end); }
  double unit() { return static_cast<double>(below(1U << 20)) * 0x1p-20; }
};

TEST_CASE("at temperature 0 the highest logit is taken, the lowest id on ties, and no random number matters") {
  const std::vector<float> logits = {1, 5, 5, -7, 5};
  for (const std::uint64_t seed : {0U, 1U, 99U}) {
    CHECK(sequence({.temperature = 0, .seed = seed}, {}, logits, 3) == std::vector<std::int32_t>{1, 1, 1});
  }
  CHECK(sequence({.temperature = 0, .top_k = 1, .top_p = 0, .min_p = 1}, {}, logits, 1).front() == 1);
}

TEST_CASE("penalties count at temperature 0: prompt and answer for repetition, the answer alone for the others") {
  const std::vector<float> logits = {4, 3, -1, -1.5F};
  const std::vector<std::int32_t> prompt = {0, 2};
  CHECK(sequence({.temperature = 0, .repetition_penalty = 2}, prompt, logits, 4) ==
        std::vector<std::int32_t>{1, 0, 0, 0});  // 2, 3 -> 2, 1.5: each is penalised once, however often it was seen
  CHECK(sequence({.temperature = 0, .presence_penalty = 2}, prompt, logits, 4) ==
        std::vector<std::int32_t>{0, 1, 0, 0});
  CHECK(sequence({.temperature = 0, .frequency_penalty = 0.75}, prompt, logits, 6) ==
        std::vector<std::int32_t>{0, 0, 1, 0, 1, 0});  // 4, 3.25, 2.5 | 3, 2.25; at 2.5 against 2.25
  CHECK(sequence({.temperature = 0, .presence_penalty = -2}, {}, std::vector<float>{0, -1}, 3) ==
        std::vector<std::int32_t>{0, 0, 0});
  // A negative logit is multiplied: -1 -> -2, below -1.5.
  CHECK(sequence({.temperature = 0, .repetition_penalty = 2}, prompt, std::vector<float>{-9, -9, -1, -1.5F}, 1) ==
        std::vector<std::int32_t>{3});
}

TEST_CASE("a bias comes before the penalties") {
  const std::vector<float> logits = {1, 0, 0.9F};
  const std::vector<std::int32_t> prompt = {1};
  CHECK(sequence({.temperature = 0, .logit_bias = {{1, 2.5}, {0, -100}}}, {}, logits, 1).front() == 1);
  // (0 + 1.9) / 2 = 0.95 stays below 1; 0 / 2 + 1.9 would not.
  CHECK(sequence({.temperature = 0, .repetition_penalty = 2, .logit_bias = {{1, 1.9}}}, prompt, logits, 1).front() ==
        0);
  // Of ids that may not be taken it does not matter.
  CHECK(sequence({.temperature = 0, .repetition_penalty = 2, .logit_bias = {{3, 100.0}}}, std::vector{5}, logits, 1)
            .front() == 0);
}

TEST_CASE("top_k, top_p and min_p keep exactly the tokens that their definitions name") {
  CHECK(drawn_ids({}, kHalving) == Ids{0, 1, 2, 3, 4});
  CHECK(drawn_ids({.top_k = 2}, kHalving) == Ids{0, 1});
  CHECK(drawn_ids({.top_k = 4}, kHalving) == Ids{0, 1, 2, 3});  // of equals the lower id
  CHECK(drawn_ids({.top_k = 9}, kHalving) == Ids{0, 1, 2, 3, 4});
  CHECK(drawn_ids({.top_p = 0}, kHalving) == Ids{0});
  CHECK(drawn_ids({.top_p = 0.49}, kHalving) == Ids{0});
  CHECK(drawn_ids({.top_p = 0.51}, kHalving) == Ids{0, 1});
  CHECK(drawn_ids({.top_p = 0.9}, kHalving) == Ids{0, 1, 2, 3});
  CHECK(drawn_ids({.min_p = 0.24}, kHalving) == Ids{0, 1, 2});
  CHECK(drawn_ids({.min_p = 0.26}, kHalving) == Ids{0, 1});
  CHECK(drawn_ids({.min_p = 1}, kHalving) == Ids{0});
  // One after the other: of the first two, 8 and 4, the first alone holds two thirds of the weight.
  CHECK(drawn_ids({.top_k = 2, .top_p = 0.6}, kHalving) == Ids{0});
  CHECK(drawn_ids({.top_p = 0.6}, kHalving) == Ids{0, 1});
  // Temperature comes before: at 0.5 the weights are 64, 16, 4, 1, 1; at 2 about 2.8, 2, 1.4, 1, 1.
  CHECK(drawn_ids({.temperature = 0.5, .min_p = 0.24}, kHalving) == Ids{0, 1});
  CHECK(drawn_ids({.temperature = 2, .min_p = 0.34}, kHalving) == Ids{0, 1, 2, 3, 4});
  // Bias too.
  CHECK(drawn_ids({.top_k = 1, .logit_bias = {{4, 10.0}}}, kHalving) == Ids{4});
  CHECK(drawn_ids({.temperature = 1e-300}, kHalving) == Ids{0});
  CHECK(drawn_ids({}, std::vector<float>{-3e38F, 3e38F}) == Ids{1});
}

TEST_CASE("any options choose what the plain definition chooses, token for token") {
  int n_differences_without_top_p = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random random{seed};
    const std::size_t vocab_size = 1 + random.below(400);
    const float step = random.below(2) == 0 ? 0.5F : 1e-3F;  // with many ties, or few
    SamplingOptions options;
    options.seed = fixtures::random_word(seed, 1000);
    if (random.below(5) == 0) options.temperature = 0;
    if (random.below(2) == 0) options.temperature *= 0.1 + random.unit();
    if (random.below(2) == 0) options.top_k = static_cast<std::int64_t>(random.below(2 * vocab_size));
    if (random.below(2) == 0) options.top_p = random.unit();
    if (random.below(3) == 0) options.min_p = random.unit() * random.unit();
    if (random.below(3) == 0) options.repetition_penalty = 0.5 + random.unit();
    if (random.below(3) == 0) options.presence_penalty = 4 * random.unit() - 2;
    if (random.below(3) == 0) options.frequency_penalty = 4 * random.unit() - 2;
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(vocab_size); id += 7) {
      if (random.below(3) == 0) options.logit_bias.emplace_back(id, 4 * random.unit() - 2);
    }
    const std::vector<std::int32_t> prompt = {0, 0, static_cast<std::int32_t>(vocab_size) - 1};
    Sampler sampler(options, prompt);
    PlainSampler plain(options, prompt);
    SamplingOptions others = options;
    others.top_p = 1;
    Sampler without_top_p(others, prompt);
    for (int i = 0; i < 30; ++i) {
      std::vector<float> logits(vocab_size);
      for (float& x : logits) x = step * static_cast<float>(random.below(static_cast<std::size_t>(8 / step)));
      const std::int32_t id = sampler.next(logits);
      REQUIRE(id == plain.next(logits));
      n_differences_without_top_p += id != without_top_p.next(logits) ? 1 : 0;
    }
  }
  CHECK(n_differences_without_top_p > 500);  // the choices do depend on the options
}

TEST_CASE("draw k is a function of seed and k: neither what was drawn before nor what else is drawn changes it") {
  const std::vector<float> flat(1000, 0.25F);
  const std::vector<float> peaked = {0, 0, 50};
  Sampler all_flat({.seed = 5}, {});
  Sampler mixed({.seed = 5}, {});
  Sampler other_seed({.seed = 6}, {});
  int n_same = 0;
  for (std::uint64_t k = 0; k < 64; ++k) {
    const std::int32_t id = all_flat.next(flat);
    CHECK(id == static_cast<std::int32_t>(random_unit(5, k) * 1000));
    if (k % 2 == 0) {
      CHECK(mixed.next(flat) == id);
    } else {
      CHECK(mixed.next(peaked) == 2);  // uses up one number all the same
    }
    n_same += other_seed.next(flat) == id ? 1 : 0;
  }
  CHECK(n_same < 4);
}

TEST_CASE("the numbers of a stream are the same everywhere, and streams of neighbouring seeds share none") {
  CHECK(random_unit(0, 0) ==
        static_cast<double>(0xE220A8397B1DCDAFU >> 11) * 0x1p-53);  // published: SplitMix64, seed 0
  CHECK(random_unit(0, 1) == static_cast<double>(0x6E789E6AA1B965F4U >> 11) * 0x1p-53);
  std::set<double> numbers;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t k = 0; k < 100; ++k) {
      numbers.insert(random_unit(seed, k));
      numbers.insert(random_unit(seed * 0x9E3779B97F4A7C15U + 100, k));
    }
  }
  CHECK(numbers.size() == 20000);
  CHECK(*numbers.begin() >= 0);
  CHECK(*numbers.rbegin() < 1);
}

TEST_CASE("tokens are drawn as often as their weights say") {
  // Chi-square with 4 degrees of freedom: above 18.47 in one of 1,000 cases. The seed is fixed, so this is no chance.
  constexpr int kDraws = 100000;
  constexpr double kBound = 18.47;
  const auto chi_square = [&](double temperature, const std::vector<double>& weights) {
    Sampler sampler({.temperature = temperature, .seed = 2026}, {});
    std::vector<int> counts(kHalving.size());
    for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.next(kHalving))];
    double sum = 0, total = 0;
    for (const double w : weights) total += w;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double expected = kDraws * weights[i] / total;
      sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return sum;
  };
  CHECK(chi_square(1, {8, 4, 2, 1, 1}) < kBound);
  CHECK(chi_square(0.5, {64, 16, 4, 1, 1}) < kBound);
  CHECK(chi_square(1, {8, 4, 2, 1, 1.1}) > kBound);  // a tenth more of one token in sixteen is seen
  CHECK(chi_square(0.9, {8, 4, 2, 1, 1}) > kBound);
}

TEST_CASE("logits that are no finite numbers are refused with the token's id") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      Sampler sampler({.temperature = temperature}, {});
      CHECK_THROWS_WITH(sampler.next(std::vector<float>{0, 1, bad, 2}), ContainsSubstring("logit of token id 2 is"));
    }
  }
  CHECK(Sampler({.repetition_penalty = 0.1}, std::vector{0}).next(std::vector<float>{3e38F, 0}) == 0);
}

TEST_CASE("options outside their ranges are refused by name, those at the ends are not") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<SamplingOptions, const char*>> bad = {
      {{.temperature = -0.1}, "temperature: found -0.1"},
      {{.temperature = 2.1}, "temperature"},
      {{.temperature = nan}, "temperature: found nan"},
      {{.temperature = infinity}, "temperature"},
      {{.top_k = -1}, "top_k: found -1"},
      {{.top_p = 1.01}, "top_p"},
      {{.top_p = nan}, "top_p"},
      {{.min_p = -0.01}, "min_p"},
      {{.repetition_penalty = 0}, "repetition_penalty"},
      {{.repetition_penalty = 11}, "repetition_penalty"},
      {{.presence_penalty = 2.5}, "presence_penalty"},
      {{.frequency_penalty = -2.5}, "frequency_penalty"},
      {{.logit_bias = {{7, 1.0}}}, "logit_bias: id 7: expected 0 to 6"},
      {{.logit_bias = {{-1, 1.0}}}, "logit_bias: id -1"},
      {{.logit_bias = {{1, 101.0}}}, "logit_bias: found 101"},
      {{.logit_bias = {{1, 1.0}, {1, 2.0}}}, "logit_bias: id 1 twice"},
      {{.logit_bias = std::vector<std::pair<std::int32_t, double>>(1025)}, "logit_bias: more than 1024"},
  };
  for (const auto& [options, what] : bad) {
    CHECK_THROWS_WITH(validate(options, 7), ContainsSubstring(what));
    CHECK_THROWS_AS(validate(options, 7), Error);
  }
  CHECK_NOTHROW(validate({}, 7));
  CHECK_NOTHROW(validate({.temperature = 2,
                          .top_p = 0,
                          .min_p = 1,
                          .repetition_penalty = 10,
                          .presence_penalty = -2,
                          .frequency_penalty = 2,
                          .logit_bias = {{6, -100.0}, {0, 100.0}}},
                         7));
}

}  // namespace
}  // namespace kalibri::runtime

#include "engine/model/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::model {

float select_top_k(std::span<const float> scores, std::int64_t k, std::int32_t* ids) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](std::int32_t i) {
    const float s = scores[static_cast<std::size_t>(i)];
    return std::isnan(s) ? -std::numeric_limits<float>::infinity() : s;
  };
  const auto better = [&](std::int32_t a, std::int32_t b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  };
  const auto n_sorted = std::min(k + 1, static_cast<std::int64_t>(scores.size()));
  std::partial_sort(order.begin(), order.begin() + n_sorted, order.end(), better);
  std::copy_n(order.begin(), k, ids);
  if (n_sorted == k) return std::numeric_limits<float>::infinity();
  return scores[static_cast<std::size_t>(order[static_cast<std::size_t>(k - 1)])] -
         scores[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])];
}

float rounded_to_bf16(float value) { return kernels::bf16_to_f32(kernels::f32_to_bf16(value)); }

#ifdef KALIBRI_MUTANTS
namespace {

/// The weights that other routers would give: renormalised, or a softmax over all experts.
void replace_weights(std::span<const float> logits, std::int64_t k, const std::int32_t* ids, float* weights) {
  float sum = 0.0F;
  if (mutation::active("weights_softmax")) {
    const float largest = *std::max_element(logits.begin(), logits.end());
    for (const float z : logits) sum += kernels::exp_f32(z - largest);
    for (std::int64_t i = 0; i < k; ++i) {
      weights[i] = kernels::exp_f32(logits[static_cast<std::size_t>(ids[i])] - largest) / sum;
    }
  } else if (mutation::active("weights_renormalised")) {
    for (std::int64_t i = 0; i < k; ++i) sum += weights[i];
    for (std::int64_t i = 0; i < k; ++i) weights[i] /= sum;
  }
}

}  // namespace
#endif

float select_kolibri1(std::span<const float> logits, std::span<const float> bias, std::int64_t k, std::int32_t* ids,
                      std::span<float> biased) {
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const float z = KALIBRI_MUTATE(logits[e], "select_sigmoid_plus_bias", kernels::sigmoid_f32(logits[e]));
    const float sum = KALIBRI_MUTATE(z + bias[e], "select_without_bias", z);
    biased[e] = KALIBRI_MUTATE(sum, "biased_sum_bf16", rounded_to_bf16(sum));
  }
  return select_top_k(biased, k, ids);
}

void weigh_kolibri1(std::span<const float> logits, std::span<const float> biased, std::span<const std::int32_t> ids,
                    float* weights) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto e = static_cast<std::size_t>(ids[i]);
    const float weight = kernels::sigmoid_f32(KALIBRI_MUTATE(logits[e], "weights_biased", biased[e]));
    weights[i] = KALIBRI_MUTATE(weight, "top_k_minus_1", i + 1 == ids.size() ? 0.0F : weight);
  }
#ifdef KALIBRI_MUTANTS
  replace_weights(logits, static_cast<std::int64_t>(ids.size()), ids.data(), weights);
#else
  static_cast<void>(biased);
#endif
}

void softmax_weights(std::span<const float> logits, std::span<const std::int32_t> ids, bool renormalised,
                     float* weights) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0.0F;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = kernels::exp_f32(logits[static_cast<std::size_t>(ids[i])] - largest);
    sum += weights[i];
  }
  if (!KALIBRI_MUTATE(renormalised, "router_not_renormalised", false)) {
    sum = 0.0F;
    for (const float z : logits) sum += kernels::exp_f32(z - largest);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) weights[i] /= sum;
}

}  // namespace kalibri::model

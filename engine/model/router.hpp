// Which experts a token goes to, and with what weight.
#pragma once

#include <cstdint>
#include <span>

namespace kalibri::model {

/// ids [k] <- indices of the k largest scores, falling; equal scores: lower index first (our choice, upstream leaves it
/// open); NaN counts as the smallest. 1 <= k <= scores.size().
/// Returns the k-th minus the (k+1)-th largest score, or +inf when there are no more than k.
float select_top_k(std::span<const float> scores, std::int64_t k, std::int32_t* ids);

/// Routes one token of Kolibri 1. Selection uses logits + bias; a weight is sigmoid(logit) without the bias, not
/// renormalised. logits [E], bias [E] -> ids [k] by falling biased logit, weights [k]; scratch [E].
/// Returns the gap of select_top_k. Source: spec/kolibri1.md 3.2.
float route_kolibri1(std::span<const float> logits, std::span<const float> bias, std::int64_t k, std::int32_t* ids,
                     float* weights, std::span<float> scratch);

}  // namespace kalibri::model

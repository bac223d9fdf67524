// Which experts a token goes to, and with what weight.
#pragma once

#include <cstdint>
#include <span>

namespace kalibri::model {

/// ids [k] <- indices of the k largest scores, falling; equal scores: lower index first (our choice, upstream leaves it
/// open); NaN counts as the smallest. 1 <= k <= scores.size().
/// Returns the k-th minus the (k+1)-th largest score, or +inf when there are no more than k.
float select_top_k(std::span<const float> scores, std::int64_t k, std::int32_t* ids);

/// Chooses the experts of one Kolibri 1 token: the top k of logits + bias. logits [E], bias [E] -> ids [k] by falling
/// biased logit; biased [E] receives logits + bias. Returns the gap of select_top_k. Source:
/// aleph-alpha-inference 1.0.0, kolibri1.py.
float select_kolibri1(std::span<const float> logits, std::span<const float> bias, std::int64_t k, std::int32_t* ids,
                      std::span<float> biased);

/// The weights of chosen Kolibri 1 experts: sigmoid(logit) without the bias, not renormalised. logits [E], ids [k] ->
/// weights [k]. `biased` serves deliberate defects alone. Source: aleph-alpha-inference 1.0.0, kolibri1.py.
void weigh_kolibri1(std::span<const float> logits, std::span<const float> biased, std::span<const std::int32_t> ids,
                    float* weights);

/// The weights of chosen experts under a softmax over all logits: exp(z_i - m) / sum, where the sum runs over the
/// chosen ones in their order when `renormalised` (norm_topk_prob), else over all experts by ascending id; m is the
/// largest logit. logits [E], ids [k] -> weights [k]. Source: transformers, modeling_qwen4_exp.py.
void softmax_weights(std::span<const float> logits, std::span<const std::int32_t> ids, bool renormalised,
                     float* weights);

/// Rounded to bf16 and back: what some deliberate defects do.
float rounded_to_bf16(float value);

}  // namespace kalibri::model

// What the accuracy tables of a model card say of one variant of a model: numbers taken from its dumps against the
// reference's own fp32 run. Nothing is judged here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "oracle/dump/reader.hpp"

namespace kalibri::oracle {

/// Each layer fed by the reference. One row a layer and prompt: layer, prompt, rel and max_abs of the residual,
/// sets_same (share of tokens with the reference's set of experts), n_differing (tokens with another); over all rows:
/// max_rel with its place, median_rel, mean and least sets_same, pairs of token and layer. Numbers that have no meaning
/// or are not finite are null. Throws dump::Error when a comparison is refused.
nlohmann::json teacher_forced_measures(const dump::Reader& reference, const dump::Reader& candidate);

/// The candidate's own run. "end_to_end": one row a prompt: T, the metrics of its logits, hidden_rel (of the head's
/// input), sets_same (mean over layers), decode_max_diff; "bands": mean KL and top1 by position, of the prefill and of
/// schedule "bands" of `decoded`; "decode": each schedule of `decoded` against the same engine's prefill; "kl_mean",
/// "top1" and "sets_same": means over all tokens of all prompts; "not_finite": where the first such logit is, or null.
/// Prompts come in the candidate's order. Throws dump::Error when a comparison is refused.
nlohmann::json chained_measures(const dump::Reader& reference, const dump::Reader& candidate,
                                const dump::Reader& decoded, std::int64_t window);

/// Of the reference: largest |x| of every layer's residual at the first positions, and the median from position 16 on.
nlohmann::json residual_measures(const dump::Reader& reference);

}  // namespace kalibri::oracle

// What one engine promises about itself: the same bits from decode as from prefill, and from a second prefill. And
// position bands, where both are held against the reference.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "oracle/verdict/judge_logits.hpp"

namespace kalibri::oracle {

/// What decode owes: its own engine's prefill every bit, another program's no more than rounding.
struct DecodeRule {
  bool must_equal = true;
  const Floor* floor = nullptr;  // chained, for !must_equal: kl_max within kLambda floors; null: mistrusted
};

/// The logits of every schedule in `decoded` and, when not null, of `repeated` (a second prefill) against the logits of
/// `prefill`. Rows of spec/verification.md 4.5, and the findings decode/<schedule> and decode/repeat.
Judged judge_decode(const dump::Reader& prefill, const dump::Reader* decoded, const dump::Reader* repeated,
                    const DecodeRule& rule);

/// Bands of every prompt (compare/bands.hpp), with a finding for prefill and one for decode (schedule "bands" of
/// `decoded`, may be null) against the reference: the mean KL of a band within kLambda times the largest KL that the
/// reference's fp32 has against its fp64 in that band. `difference` compares `reference` with the chained candidate.
/// `floor` compares reference with its chained fp64 run; null: mistrusted.
Judged judge_bands(const dump::Reader& reference, const DumpDifference& difference, const dump::Reader* decoded,
                   const DumpDifference* floor, std::int64_t window);

}  // namespace kalibri::oracle

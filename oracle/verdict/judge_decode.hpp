// What one engine promises about itself: the same bits from decode as from prefill, and from a second prefill.
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
/// `prefill`. One row a prompt and schedule, and the findings decode/<schedule> and decode/repeat.
Judged judge_decode(const dump::Reader& prefill, const dump::Reader* decoded, const dump::Reader* repeated,
                    const DecodeRule& rule);

}  // namespace kalibri::oracle

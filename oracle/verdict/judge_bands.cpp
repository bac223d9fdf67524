#include "oracle/verdict/judge_bands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "oracle/compare/bands.hpp"
#include "oracle/verdict/measure.hpp"
#include "oracle/verdict/rules.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

namespace {

using nlohmann::json;

/// The largest KL of the reference's fp32 against its fp64 within [first, end) of all prompts, before their first
/// differing token, and never below what its noise makes; nothing when no position is there.
std::optional<double> band_floor(const MeasuredFloor& measured, std::int64_t first, std::int64_t end) {
  std::optional<double> largest;
  for (const PromptDifference& prompt : measured.difference.prompts) {
    if (!prompt.logits) continue;
    const LogitMetrics metrics =
        summarise_positions(*prompt.logits, first, std::min(end, first_differing_token(prompt)));
    if (metrics.n_positions > 0) largest = std::max(largest.value_or(0), *metrics.kl_max);
  }
  const std::optional<LogitsFloor>& logits = measured.floor.logits;
  // Where the precision rounds, the reference's own two runs may part before a band that the candidate reaches.
  if (!largest && logits && measured.floor.unit > 0) return logits->kl_max;
  if (!largest || !logits) return std::nullopt;
  return std::max({*largest, logits->kl_noise(), logits->kl_unit, kl_rounding(logits->n_vocab)});
}

std::optional<LogitsDifference> decode_against(const dump::Reader& reference, const dump::PromptInfo& prompt,
                                               const dump::Reader* decoded) {
  const dump::PromptInfo* other = decoded == nullptr ? nullptr : decoded->find_prompt(prompt.name);
  if (other == nullptr) return std::nullopt;
  for (const dump::Schedule& schedule : other->schedules) {
    if (schedule.name == "bands")
      return compare_logit_rows(prefill_logits(reference, prompt), decode_logits(*decoded, *other, schedule));
  }
  return std::nullopt;
}

}  // namespace

Judged judge_bands(const dump::Reader& reference, const DumpDifference& difference, const dump::Reader* decoded,
                   const MeasuredFloor* floor, std::int64_t window) {
  constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();
  Judged judged;
  Measure prefill("bands", "prefill", kLambda), decode("bands", "decode", kLambda);
  for (const PromptDifference& prompt : difference.prompts) {
    if (!prompt.logits) continue;
    const dump::PromptInfo& info = *reference.find_prompt(prompt.prompt);
    const auto cached = decode_against(reference, info, decoded);
    json row = bands_of_prompt(reference, info, window, *prompt.logits, cached);
    for (json& band : row["bands"]) {
      const auto first = band["first"].get<std::int64_t>();
      const auto end = band["end"].get<std::int64_t>();
      const bool is_last = window > 0 && first >= window;  // of its floor, what longer prompts have is part
      const auto level = floor == nullptr ? std::nullopt : band_floor(*floor, first, is_last ? kNoEnd : end);
      const auto add = [&](Measure& measure, const LogitsDifference& logits) {
        const LogitMetrics metrics = summarise_positions(logits, first, std::min(end, first_differing_token(prompt)));
        if (metrics.n_positions == 0) return;
        measure.add(*metrics.kl_mean, level, {{}, prompt.prompt, metrics.worst_kl_pos, {}, "logits"},
                    fmt::format("mean KL of positions [{}, {})", first, end));
      };
      add(prefill, *prompt.logits);
      if (cached) add(decode, *cached);
      band["bound"] = level ? number(kLambda * *level) : json();
    }
    judged.rows.push_back(std::move(row));
  }
  judged.findings = {prefill.finding(), decode.finding()};
  return judged;
}

}  // namespace kalibri::oracle

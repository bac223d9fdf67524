#include "oracle/tables/variant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "oracle/compare/bands.hpp"
#include "oracle/compare/dump_difference.hpp"
#include "oracle/verdict/judge_logits.hpp"

namespace kalibri::oracle {

namespace {

using nlohmann::json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Sum of weighted values and of their weights; no value: no mean. NaN makes it NaN.
class Mean {
 public:
  void add(std::optional<double> value, std::int64_t weight = 1) {
    if (!value) return;
    sum_ += *value * static_cast<double>(weight);
    weight_ += static_cast<double>(weight);
  }
  [[nodiscard]] std::optional<double> value() const {
    return weight_ > 0 ? std::optional(sum_ / weight_) : std::nullopt;
  }

 private:
  double sum_ = 0, weight_ = 0;
};

/// The reference's prompt of the same name and tokens.
const dump::PromptInfo& counterpart(const dump::Reader& reference, const dump::Reader& candidate,
                                    const dump::PromptInfo& prompt) {
  const dump::PromptInfo* ours = reference.find_prompt(prompt.name);
  if (ours == nullptr) {
    throw dump::Error(fmt::format("{}: has no prompt {}, which {} has: make both from the same prompts",
                                  reference.path().string(), prompt.name, candidate.path().string()));
  }
  refuse_other_tokens(reference, *ours, candidate, prompt);
  return *ours;
}

LogitsDifference logits_difference(const LogitsRef& reference, const LogitsRef& candidate) {
  auto logits = compare_logit_rows(reference, candidate);
  if (!logits) {
    throw dump::Error(fmt::format("{}: prompt {}: no logits in common with {}", candidate.tensor.dump.path().string(),
                                  candidate.tensor.prompt, reference.tensor.dump.path().string()));
  }
  return std::move(*logits);
}

/// decode_max_diff of schedule "tail".
std::optional<double> tail_difference(const LogitsDifference& tail, std::int64_t n_tokens) {
  std::vector<LogitRowDifference> rows;
  for (const LogitsRow& row : tail.rows) rows.push_back(row.difference);
  return decode_max_diff(rows, n_tokens);
}

/// Mean over the layers that both hold of the share of tokens with equal sets.
std::optional<double> sets_same(const dump::Reader& reference, const dump::Reader& candidate,
                                const dump::PromptInfo& prompt) {
  Mean mean;
  for (const std::int64_t layer : prompt.layers) {
    if (const auto routing = compare_routing(reference, candidate, prompt.name, layer)) mean.add(routing->same_frac);
  }
  return mean.value();
}

json schedule_row(const dump::PromptInfo& prompt, const dump::Schedule& schedule, const LogitMetrics& metrics) {
  return {{"prompt", prompt.name},
          {"schedule", schedule.name},
          {"n_prefilled", schedule.n_prefilled},
          {"n_rows", schedule.n_rows},
          {"kl_mean", number(metrics.kl_mean)},
          {"kl_max", number(metrics.kl_max)},
          {"top1", number(metrics.top1)},
          {"max_abs_logit", number(metrics.max_abs_logit)}};
}

}  // namespace

json teacher_forced_measures(const dump::Reader& reference, const dump::Reader& candidate) {
  json rows = json::array();
  std::vector<double> rels;
  Mean same;
  std::optional<double> least_same, largest;
  json place;
  std::int64_t n_pairs = 0, n_differing = 0;
  for (const dump::PromptInfo& prompt : candidate.prompts()) {
    counterpart(reference, candidate, prompt);
    for (const std::int64_t layer : prompt.layers) {
      const std::string path = dump::layer_path(layer, "residual");
      const TensorMetrics metrics =
          compare_tensor({reference, prompt.name, path}, {candidate, prompt.name, path}).metrics;
      const auto routing = compare_routing(reference, candidate, prompt.name, layer);
      const std::optional<double> set_share = routing ? routing->same_frac : std::nullopt;
      rows.push_back({{"layer", layer},
                      {"prompt", prompt.name},
                      {"rel", number(metrics.rel)},
                      {"max_abs", number(metrics.max_abs)},
                      {"sets_same", number(set_share)},
                      {"n_differing", routing ? json(routing->n_differing()) : json()}});
      same.add(set_share);
      if (routing) {
        least_same = std::min(least_same.value_or(1), *set_share);
        n_pairs += std::ssize(routing->differs);
        n_differing += routing->n_differing();
      }
      if (!metrics.rel) continue;
      rels.push_back(*metrics.rel);
      if (largest && !(*metrics.rel > *largest) && !std::isnan(*metrics.rel)) continue;
      largest = metrics.rel;
      place = {{"layer", layer}, {"prompt", prompt.name}};
    }
  }
  const bool has_nan = std::any_of(rels.begin(), rels.end(), [](double rel) { return std::isnan(rel); });
  std::sort(rels.begin(), rels.end());
  const auto median = rels.empty() ? std::nullopt : std::optional(has_nan ? kNaN : percentile(rels, 0.5));
  return {{"rows", std::move(rows)},
          {"max_rel", number(has_nan ? std::optional(kNaN) : largest)},
          {"max_rel_at", std::move(place)},
          {"median_rel", number(median)},
          {"sets_same", number(same.value())},
          {"sets_same_min", number(least_same)},
          {"n_pairs", n_pairs},
          {"n_differing", n_differing}};
}

json chained_measures(const dump::Reader& reference, const dump::Reader& candidate, const dump::Reader& decoded,
                      std::int64_t window) {
  json result = {
      {"end_to_end", json::array()}, {"bands", json::array()}, {"decode", json::array()}, {"not_finite", {}}};
  Mean kl, top1, same;
  for (const dump::PromptInfo& prompt : candidate.prompts()) {
    const auto n_tokens = static_cast<std::int64_t>(prompt.tokens.size());
    const LogitsRef ours = prefill_logits(reference, counterpart(reference, candidate, prompt));
    const LogitsRef theirs = prefill_logits(candidate, prompt);
    const LogitsDifference prefill = logits_difference(ours, theirs);
    if (const auto& wrong = prefill.metrics.not_finite; wrong && result["not_finite"].is_null()) {
      result["not_finite"] = text({{}, prompt.name, wrong->position, wrong->element, "logits"});
    }
    std::optional<LogitsDifference> bands;
    std::optional<double> max_diff;
    if (const dump::PromptInfo* cached = decoded.find_prompt(prompt.name)) {
      for (const dump::Schedule& schedule : cached->schedules) {
        const LogitsRef rows = decode_logits(decoded, *cached, schedule);
        const LogitsDifference own = logits_difference(theirs, rows);
        result["decode"].push_back(schedule_row(prompt, schedule, own.metrics));
        if (schedule.name == "tail") max_diff = tail_difference(own, n_tokens);
        if (schedule.name == "bands") bands = logits_difference(ours, rows);
      }
    }
    const std::optional<double> shared = sets_same(reference, candidate, prompt);
    const std::string norm = "final_norm";
    const TensorMetrics hidden = compare_tensor({reference, prompt.name, norm}, {candidate, prompt.name, norm}).metrics;
    json row = to_json(prefill.metrics);
    row.update({{"prompt", prompt.name},
                {"T", n_tokens},
                {"hidden_rel", number(hidden.rel)},
                {"sets_same", number(shared)},
                {"decode_max_diff", number(max_diff)}});
    result["end_to_end"].push_back(std::move(row));
    result["bands"].push_back(
        {{"prompt", prompt.name}, {"T", n_tokens}, {"bands", band_rows(n_tokens, window, prefill, bands)}});
    kl.add(prefill.metrics.kl_mean, n_tokens);
    top1.add(prefill.metrics.top1, n_tokens);
    same.add(shared, n_tokens);
  }
  result.update({{"kl_mean", number(kl.value())}, {"top1", number(top1.value())}, {"sets_same", number(same.value())}});
  return result;
}

json residual_measures(const dump::Reader& reference) {
  json result = json::array();
  for (const dump::PromptInfo& prompt : reference.prompts()) {
    result.push_back({{"prompt", prompt.name}, {"rows", residual_maxima(reference, prompt)}});
  }
  return result;
}

}  // namespace kalibri::oracle

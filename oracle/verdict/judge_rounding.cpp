#include "oracle/verdict/judge_rounding.hpp"

#include <fmt/format.h>

#include <utility>

#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

namespace {

using Key = std::pair<std::int64_t, std::string>;  // layer (or kNoLayer) and tensor

std::map<Key, FormatCount> count(const DumpDifference& difference) {
  std::map<Key, FormatCount> counts;
  for (const PromptDifference& prompt : difference.prompts) {
    for (const auto& [name, tensor] : prompt.tensors) counts[{kNoLayer, name}].add(tensor.format);
    if (prompt.logits) counts[{kNoLayer, "logits"}].add(prompt.logits->format);
    for (const LayerDifference& layer : prompt.layers) {
      for (const auto& [name, tensor] : layer.tensors) counts[{layer.layer, name}].add(tensor.format);
    }
  }
  return counts;
}

/// Numbers that are not in the format of the reference's, and how many of them are allowed.
std::pair<std::int64_t, std::int64_t> faults(const FormatCount& format) {
  if (format.n_reference_wider == 0) return {format.n_candidate_wider, 0};
  return {format.n_reference_wider - format.n_candidate_wider, format.n_reference_wider / 2};
}

}  // namespace

Finding rounding_finding(const DumpDifference& difference) {
  Finding finding{difference.check + "/rounding",        difference.check, Status::not_applicable, {}, {}, {}, {},
                  "no tensor has enough numbers to tell"};
  std::int64_t n_rounded = 0, n_not_rounded = 0, n_at_fault = 0;
  double worst = 0;  // share of a tensor's numbers
  for (const auto& [key, format] : count(difference)) {
    if (format.n_telling < kTellingNumbers) continue;
    const auto [n_faults, n_allowed] = faults(format);
    ++(format.n_reference_wider == 0 ? n_rounded : n_not_rounded);
    if (n_faults <= n_allowed) continue;
    ++n_at_fault;
    const double share = static_cast<double>(n_faults) / static_cast<double>(format.n_telling);
    if (share <= worst) continue;
    worst = share;
    finding.value = static_cast<double>(n_faults);
    finding.bound = static_cast<double>(n_allowed);
    finding.where = {};
    if (key.first != kNoLayer) finding.where.layer = key.first;
    finding.where.tensor = key.second;
    finding.text = fmt::format("{} of {} numbers need more than bf16, but {} of the reference's",
                               format.n_candidate_wider, format.n_telling, format.n_reference_wider);
  }
  if (n_rounded + n_not_rounded == 0) return finding;
  finding.status = n_at_fault == 0 ? Status::held : Status::fell_short;
  if (n_at_fault > 1) finding.text += fmt::format("; {} tensors in all are rounded otherwise", n_at_fault);
  if (n_at_fault == 0) {
    finding.value = finding.bound = 0;
    finding.text = fmt::format("{} tensors are rounded to bf16 on both sides, {} on neither", n_rounded, n_not_rounded);
  }
  return finding;
}

}  // namespace kalibri::oracle

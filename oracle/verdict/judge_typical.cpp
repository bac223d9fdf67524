#include "oracle/verdict/judge_typical.hpp"

#include <fmt/format.h>

#include "oracle/verdict/measure.hpp"
#include "oracle/verdict/row_errors.hpp"
#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

namespace {

RowErrors collect(const DumpDifference& difference, const std::vector<JudgedLayer>& layers) {
  RowErrors errors;
  for (const PromptDifference& prompt : difference.prompts) {
    for (const auto& [name, tensor] : prompt.tensors) errors.add(kNoLayer, name, tensor.row_rel, {});
    if (prompt.logits) errors.add_logits(*prompt.logits, prompt.n_tokens);
  }
  for (const JudgedLayer& layer : layers) {
    for (const auto& [name, tensor] : layer.layer->tensors) {
      if (name == "router_gap") continue;  // may be near 0: no relative error
      errors.add(layer.layer->layer, name, tensor.row_rel, layer.ties.left_out(name, layer.prompt->n_tokens));
    }
  }
  return errors;
}

}  // namespace

Finding typical_finding(const DumpDifference& difference, const std::vector<JudgedLayer>& layers, const Floor* floor) {
  Measure typical(difference.check, "typical", kKappa);
  const RowErrors errors = collect(difference, layers);
  for (const auto& [key, group] : errors.groups()) {
    const auto& [layer, tensor] = key;
    const bool by_one_prompt =
        floor != nullptr && floor->unit > 0 && 4 * group.n_largest_prompt > 3 * group.rows.size();
    if (group.rows.size() < kTypicalRows || by_one_prompt) continue;
    Where where{{}, {}, {}, {}, tensor};
    if (layer != kNoLayer) where.layer = layer;
    typical.add(group.lower_quartile(), floor == nullptr ? std::nullopt : floor->quartile(layer, tensor), where,
                fmt::format("three quarters of {} rows are off by at least", group.rows.size()));
  }
  Finding finding = typical.finding();
  if (!finding.value && floor != nullptr && kKappa * floor->unit > kLoosestRoundedBound) {
    finding.status = Status::mistrusted;
    finding.text = fmt::format(
        "no tensor has {} rows of which one prompt has at most three quarters, and what single rows may be off by in "
        "this precision proves nothing: compare several prompts of like length",
        kTypicalRows);
  }
  return finding;
}

}  // namespace kalibri::oracle

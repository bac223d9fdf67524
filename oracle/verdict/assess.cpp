#include "oracle/verdict/assess.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "oracle/verdict/judge_bands.hpp"
#include "oracle/verdict/judge_choices.hpp"
#include "oracle/verdict/judge_decode.hpp"
#include "oracle/verdict/judge_layers.hpp"
#include "oracle/verdict/judge_rounding.hpp"
#include "oracle/verdict/judge_typical.hpp"
#include "oracle/verdict/rounding_unit.hpp"

namespace kalibri::oracle {

namespace {

using nlohmann::json;

void append(std::vector<Finding>& all, const std::vector<Finding>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::optional<MeasuredFloor> measure(const dump::Reader& reference, const dump::Reader* other, const std::string& check,
                                     const LayerRange& layers, RunMode mode) {
  if (other == nullptr) return std::nullopt;
  MeasuredFloor measured{compare_dumps(reference, *other, check, layers), {}};
  measured.floor = measure_floor(measured.difference, mode, rounding_unit(reference.header().precision));
  measured.floor.findings.push_back(floor_origin(reference, *other, check));
  return measured;
}

/// Layers, ends and logits of one candidate dump.
json compare_run(const DumpDifference& difference, const Floor* floor, RunMode mode, std::vector<Finding>& findings) {
  append(findings, difference.findings);
  const std::vector<JudgedLayer> layers = judge_layers(difference, floor, mode);
  std::vector<JudgedTensor> tensors = judge_ends(difference, floor, mode);
  for (const JudgedLayer& layer : layers) tensors.insert(tensors.end(), layer.tensors.begin(), layer.tensors.end());
  append(findings, tensor_findings(difference.check, tensors));
  if (mode == RunMode::teacher_forced) findings.push_back(typical_finding(difference, layers, floor));
  findings.push_back(rounding_finding(difference));
  findings.push_back(experts_finding(difference.check, layers));
  findings.push_back(blocks_finding(difference.check, layers));
  if (std::optional<Finding> rows = ngram_rows_finding(difference.check, layers)) findings.push_back(std::move(*rows));
  Judged logits = judge_logits(difference, floor, mode);
  append(findings, logits.findings);
  return {{"mode", difference.check}, {"rows", layer_rows(layers)}, {"logits", std::move(logits.rows)}};
}

json ranked(const std::vector<std::pair<std::int64_t, double>>& tokens) {
  json result = json::array();
  for (const auto& [id, probability] : tokens) result.push_back({id, probability});
  return result;
}

/// decode_max_diff of one prompt: the schedule "tail" against the same engine's prefill.
std::optional<double> decode_difference(const Dumps& dumps, const dump::PromptInfo& prompt) {
  const dump::PromptInfo* other = dumps.decoded == nullptr ? nullptr : dumps.decoded->find_prompt(prompt.name);
  if (other == nullptr) return std::nullopt;
  for (const dump::Schedule& schedule : other->schedules) {
    if (schedule.name != "tail") continue;
    const auto logits =
        compare_logit_rows(prefill_logits(*dumps.chained, prompt), decode_logits(*dumps.decoded, *other, schedule));
    if (!logits) return std::nullopt;
    std::vector<LogitRowDifference> rows;
    for (const LogitsRow& row : logits->rows) rows.push_back(row.difference);
    return decode_max_diff(rows, static_cast<std::int64_t>(prompt.tokens.size()));
  }
  return std::nullopt;
}

json end_to_end(const Dumps& dumps, const DumpDifference& difference, std::vector<Finding>& findings) {
  json rows = json::array();
  Finding finding{"end-to-end/decode_max_diff",         "end-to-end", Status::not_applicable, {}, 0, {}, {},
                  "no prompt of two tokens was decoded"};
  for (const PromptDifference& prompt : difference.prompts) {
    if (!prompt.logits) continue;
    const LogitsRef ours = prefill_logits(*dumps.reference, *dumps.reference->find_prompt(prompt.prompt));
    const dump::PromptInfo& info = *dumps.chained->find_prompt(prompt.prompt);
    const LogitsRef theirs = prefill_logits(*dumps.chained, info);
    const LogitMetrics& metrics = prompt.logits->metrics;
    const std::int64_t worst = metrics.worst_kl_pos.value_or(0);
    const auto hidden = prompt.tensors.find("final_norm");
    const std::optional<double> decode = decode_difference(dumps, info);
    json row = to_json(metrics);
    row["prompt"] = prompt.prompt;
    row["T"] = prompt.n_tokens;
    row["hidden_rel"] = hidden == prompt.tensors.end() ? json() : number(hidden->second.metrics.rel);
    row["next_ref"] = ranked(likeliest(ours, prompt.n_tokens - 1, 5));
    row["next_candidate"] = ranked(likeliest(theirs, prompt.n_tokens - 1, 5));
    row["worst_ref_top3"] = ranked(likeliest(ours, worst, 3));
    row["worst_candidate_top3"] = ranked(likeliest(theirs, worst, 3));
    row["decode_max_diff"] = number(decode);
    rows.push_back(std::move(row));
    if (!decode) continue;
    if (finding.value && !(*decode > *finding.value)) continue;
    finding.value = decode;
    finding.where.prompt = prompt.prompt;
    finding.status = *decode <= 0 ? Status::held : Status::fell_short;  // NaN falls short
    finding.text =
        fmt::format("decode against prefill over the last positions: {:.2e}, one engine's bits must be equal", *decode);
  }
  findings.push_back(std::move(finding));
  return {{"rows", std::move(rows)}};
}

}  // namespace

std::vector<std::pair<std::string, const dump::Reader*>> named(const Dumps& dumps) {
  std::vector<std::pair<std::string, const dump::Reader*>> all = {{"reference", dumps.reference},
                                                                  {"reference_f64", dumps.reference_f64},
                                                                  {"teacher_forced_f64", dumps.teacher_forced_f64},
                                                                  {"teacher_forced", dumps.teacher_forced},
                                                                  {"chained", dumps.chained},
                                                                  {"repeated", dumps.repeated},
                                                                  {"decoded", dumps.decoded}};
  std::erase_if(all, [](const auto& entry) { return entry.second == nullptr; });
  return all;
}

Assessment assess(const Dumps& dumps, const LayerRange& layers, std::int64_t window) {
  Assessment result;
  result.comparisons = json::object();
  std::optional<MeasuredFloor> layer_floor, chained_floor;
  if (dumps.reference != nullptr) {
    const dump::Reader& reference = *dumps.reference;
    layer_floor = measure(reference, dumps.teacher_forced_f64, "floor-teacher-forced", layers, RunMode::teacher_forced);
    chained_floor = measure(reference, dumps.reference_f64, "floor-chained", layers, RunMode::chained);
  }
  result.floors = {{"teacher_forced", layer_floor ? to_json(layer_floor->floor) : json()},
                   {"chained", chained_floor ? to_json(chained_floor->floor) : json()}};
  if (layer_floor) append(result.findings, layer_floor->floor.findings);
  if (chained_floor) append(result.findings, chained_floor->floor.findings);
  const Floor* chained_level = chained_floor ? &chained_floor->floor : nullptr;

  if (dumps.reference != nullptr && dumps.teacher_forced != nullptr) {
    const DumpDifference difference = compare_dumps(*dumps.reference, *dumps.teacher_forced, "teacher-forced", layers);
    const Floor* level = layer_floor ? &layer_floor->floor : nullptr;
    result.comparisons["teacher_forced"] = compare_run(difference, level, RunMode::teacher_forced, result.findings);
  }
  if (dumps.reference != nullptr && dumps.chained != nullptr) {
    const DumpDifference difference = compare_dumps(*dumps.reference, *dumps.chained, "chained", layers);
    result.comparisons["chained"] = compare_run(difference, chained_level, RunMode::chained, result.findings);
    result.comparisons["end_to_end"] = end_to_end(dumps, difference, result.findings);
    Judged bands =
        judge_bands(*dumps.reference, difference, dumps.decoded, chained_floor ? &*chained_floor : nullptr, window);
    result.comparisons["bands"] = {{"prompts", std::move(bands.rows)}};
    append(result.findings, bands.findings);
  }
  if (dumps.decoded != nullptr || dumps.repeated != nullptr) {
    const dump::Reader* prefill = dumps.chained != nullptr ? dumps.chained : dumps.reference;
    Judged decode = judge_decode(*prefill, dumps.decoded, dumps.repeated,
                                 {.must_equal = prefill == dumps.chained, .floor = chained_level});
    result.comparisons["decode"] = {{"rows", std::move(decode.rows)}};
    append(result.findings, decode.findings);
  }
  return result;
}

}  // namespace kalibri::oracle

#include "oracle/verdict/judge_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "oracle/verdict/judge_choices.hpp"
#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

namespace {

constexpr const char* kRel = "rel_token_max";
constexpr const char* kRelTrimmed = "rel_token_max_trimmed";
constexpr const char* kMaxAbs = "max_abs";

JudgedTensor judge_rows(const std::vector<double>& rows, const std::vector<bool>& left_out, std::optional<double> floor,
                        RunMode mode) {
  JudgedTensor judged;
  const Worst worst = worst_row(rows, left_out);
  judged.value = worst.value;
  judged.position = worst.row;
  if (mode == RunMode::chained || worst.row < 0) return judged;
  judged.floor = floor;
  if (!floor) {
    judged.status = Status::mistrusted;
    return judged;
  }
  judged.bound = kKappa * *floor;
  judged.status = judged.value <= *judged.bound ? Status::held : Status::fell_short;  // NaN falls short
  return judged;
}

/// How near its bound (1: at it); NaN and a value without a bound are nearer than any.
double nearness(const JudgedTensor& judged) {
  if (!judged.bound || std::isnan(judged.value)) return std::numeric_limits<double>::infinity();
  return judged.value / *judged.bound;
}

void judge_layer_tensors(JudgedLayer& layer, const Floor* floor, RunMode mode) {
  for (const auto& named : layer.layer->tensors) {  // clang 14 lets no lambda name a structured binding
    const std::string& name = named.first;
    const auto& tensor = named.second;
    const TensorFloor* entry = floor == nullptr ? nullptr : floor->find(layer.layer->layer, name);
    const std::vector<bool> left_out = layer.ties.left_out(name, layer.prompt->n_tokens);
    const auto add = [&](const char* measure, const std::vector<double>& rows, std::optional<double> level) {
      JudgedTensor judged = judge_rows(rows, left_out, level, mode);
      judged.layer = layer.layer->layer;
      judged.prompt = layer.prompt->prompt;
      judged.tensor = name;
      judged.measure = measure;
      layer.tensors.push_back(std::move(judged));
    };
    using Level = std::optional<double>;
    if (name == "router_gap") {
      add(kMaxAbs, tensor.row_max_abs, entry ? Level(entry->max_abs) : std::nullopt);
      continue;
    }
    add(kRel, tensor.row_rel, entry ? Level(entry->rel_token_max) : std::nullopt);
    if (name == "residual" && !tensor.row_rel_trimmed.empty()) {
      add(kRelTrimmed, tensor.row_rel_trimmed, entry ? entry->rel_token_max_trimmed : std::nullopt);
    }
  }
}

nlohmann::json tensor_numbers(const TensorDifference& tensor, const JudgedTensor& judged) {
  return {{"max_abs", number(tensor.metrics.max_abs)},
          {"mean_abs", number(tensor.metrics.mean_abs)},
          {"rel", number(tensor.metrics.rel)},
          {"rel_token_max", number(tensor.metrics.rel_token_max)},
          {"worst_position", judged.position < 0 ? nlohmann::json() : nlohmann::json(judged.position)},
          {"measure", judged.measure},
          {"value", number(judged.value)},
          {"bound", number(judged.bound)},
          {"status", text(judged.status)}};
}

nlohmann::json layer_row(const JudgedLayer& judged) {
  const LayerDifference& layer = *judged.layer;
  nlohmann::json row = {{"layer", layer.layer}, {"prompt", judged.prompt->prompt}, {"T", judged.prompt->n_tokens}};
  const auto residual = layer.tensors.find("residual");
  const TensorMetrics metrics = residual == layer.tensors.end() ? TensorMetrics{} : residual->second.metrics;
  row["max_abs"] = number(metrics.max_abs);
  row["mean_abs"] = number(metrics.mean_abs);
  row["rel"] = number(metrics.rel);
  row["rel_token_max"] = number(metrics.rel_token_max);
  row["cos_last"] = number(metrics.cos_last);
  const JudgedTensor* plain = judged.find("residual", kRel);
  const JudgedTensor* trimmed = judged.find("residual", kRelTrimmed);
  row["rel_token_max_trimmed"] = trimmed ? number(worst_row(residual->second.row_rel_trimmed).value) : nlohmann::json();
  row["worst_position"] = metrics.n_rows == 0 ? nlohmann::json() : nlohmann::json(metrics.rel_token_max_position);
  row["bound"] = plain ? number(plain->bound) : nlohmann::json();
  row["bound_trimmed"] = trimmed ? number(trimmed->bound) : nlohmann::json();
  if (residual != layer.tensors.end() && !residual->second.rel_per_stream.empty()) {
    for (const auto& rel : residual->second.rel_per_stream) row["rel_per_stream"].push_back(number(rel));
  }
  row["route_same_frac"] = layer.routing ? number(layer.routing->same_frac) : nlohmann::json();
  row["route_diff_tokens"] = layer.routing ? nlohmann::json(layer.routing->n_differing()) : nlohmann::json();
  const ChoiceTies& experts = judged.ties.experts;
  row["ties_excused"] = experts.excused.size();
  row["largest_gap_excused"] = experts.excused.empty() ? nlohmann::json() : number(experts.largest_gap_excused);
  row["blocks"] = layer.selection ? blocks_row(judged) : nlohmann::json();
  Status status =
      experts.faults.empty() && judged.ties.blocks.faults.empty() ? Status::not_applicable : Status::fell_short;
  row["tensors"] = nlohmann::json::object();
  for (const JudgedTensor& tensor : judged.tensors) {
    status = std::max(status, tensor.status);
    if (tensor.tensor != "residual")
      row["tensors"][tensor.tensor] = tensor_numbers(layer.tensors.at(tensor.tensor), tensor);
  }
  row["status"] = text(status);
  return row;
}

}  // namespace

const JudgedTensor* JudgedLayer::find(const std::string& tensor, const std::string& measure) const {
  for (const JudgedTensor& judged : tensors) {
    if (judged.tensor == tensor && judged.measure == measure) return &judged;
  }
  return nullptr;
}

std::vector<JudgedLayer> judge_layers(const DumpDifference& difference, const Floor* floor, RunMode mode) {
  std::vector<JudgedLayer> result;
  for (const PromptDifference& prompt : difference.prompts) {
    std::vector<LayerTies> ties = judge_ties(prompt, floor, mode);
    for (std::size_t i = 0; i < prompt.layers.size(); ++i) {
      const LayerDifference& layer = prompt.layers[i];
      JudgedLayer& judged =
          result.emplace_back(JudgedLayer{&prompt, &layer, std::move(ties[i]), block_noise(floor, layer.layer), {}});
      judge_layer_tensors(judged, floor, mode);
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const JudgedLayer& a, const JudgedLayer& b) { return a.layer->layer < b.layer->layer; });
  return result;
}

std::vector<JudgedTensor> judge_ends(const DumpDifference& difference, const Floor* floor, RunMode mode) {
  std::vector<JudgedTensor> result;
  for (const PromptDifference& prompt : difference.prompts) {
    std::vector<bool> left_out(static_cast<std::size_t>(prompt.n_tokens), false);
    if (mode == RunMode::chained) std::fill(left_out.begin() + first_differing_token(prompt), left_out.end(), true);
    for (const auto& [name, tensor] : prompt.tensors) {
      const TensorFloor* entry = floor == nullptr ? nullptr : floor->find(kNoLayer, name);
      JudgedTensor judged =
          judge_rows(tensor.row_rel, left_out, entry ? std::optional(entry->rel_token_max) : std::nullopt,
                     RunMode::teacher_forced);
      judged.prompt = prompt.prompt;
      judged.tensor = name;
      judged.measure = kRel;
      result.push_back(std::move(judged));
    }
  }
  return result;
}

std::vector<Finding> tensor_findings(const std::string& check, const std::vector<JudgedTensor>& judged) {
  std::map<std::string, std::vector<const JudgedTensor*>> groups;
  for (const JudgedTensor& tensor : judged) {
    if (tensor.status == Status::not_applicable) continue;
    groups[tensor.tensor + (tensor.measure == kRelTrimmed ? "-trimmed" : "")].push_back(&tensor);
  }
  std::vector<Finding> findings;
  for (const auto& [name, group] : groups) {
    const JudgedTensor& worst = **std::max_element(group.begin(), group.end(), [](const auto* a, const auto* b) {
      return std::pair(a->status, nearness(*a)) < std::pair(b->status, nearness(*b));
    });
    Finding finding{check + "/" + name, check, worst.status, worst.value, worst.bound, worst.floor, {}, ""};
    if (worst.layer != kNoLayer) finding.where.layer = worst.layer;
    finding.where.prompt = worst.prompt;
    finding.where.position = worst.position;
    finding.where.tensor = worst.tensor;
    const auto first_fault =
        std::find_if(group.begin(), group.end(), [](const auto* t) { return t->status == Status::fell_short; });
    finding.text = fmt::format("{} {:.2e}", worst.measure, worst.value);
    if (!worst.bound) {
      finding.text += ": no floor was measured for it: run the reference in fp64 as well";
    } else if (first_fault == group.end()) {
      finding.text += fmt::format(" is within {} floors of {:.2e}", kKappa, *worst.floor);
    } else {
      finding.text +=
          fmt::format(" is {:.3g} floors of {:.2e}, {} are allowed", worst.value / *worst.floor, *worst.floor, kKappa);
      if ((*first_fault)->layer != kNoLayer)
        finding.text += fmt::format("; layer {} is the first to fall short", (*first_fault)->layer);
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

nlohmann::json layer_rows(const std::vector<JudgedLayer>& layers) {
  nlohmann::json rows = nlohmann::json::array();
  for (const JudgedLayer& layer : layers) rows.push_back(layer_row(layer));
  return rows;
}

}  // namespace kalibri::oracle

#include "oracle/verdict/floor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "oracle/verdict/row_errors.hpp"
#include "oracle/verdict/rules.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

namespace {

bool is_score(const std::string& tensor) {
  return tensor == "router_logits" || tensor == "router_gap" || tensor == "index_scores";
}

/// Rows that say nothing about rounding: teacher-forced, what comes after a choice for a token where it differs;
/// chained, everything from the prompt's first differing token on. Where the precision rounds, the very token that
/// differs is part of its layer's scores: it is there that they moved most.
std::vector<bool> rows_left_out(const PromptDifference& prompt, const LayerDifference* layer, const std::string& tensor,
                                RunMode mode, bool rounds) {
  const auto n_tokens = static_cast<std::size_t>(prompt.n_tokens);
  if (mode == RunMode::chained) {
    const bool keeps_token = rounds && layer != nullptr && is_score(tensor);
    std::vector<bool> left_out =
        keeps_token ? rows_after_differing(*layer, tensor, prompt.n_tokens) : std::vector<bool>(n_tokens, false);
    const std::int64_t end = keeps_token ? first_differing_before(prompt, layer->layer) : first_differing_token(prompt);
    std::fill(left_out.begin() + end, left_out.end(), true);
    return left_out;
  }
  return layer == nullptr ? std::vector<bool>() : rows_after_differing(*layer, tensor, prompt.n_tokens);
}

void widen(Floor& floor, std::int64_t layer, const std::string& tensor, const TensorDifference& difference,
           double scale, const std::vector<bool>& left_out) {
  const Worst error = worst_row(difference.row_rel, left_out);
  if (error.row < 0) return;                                   // nothing left to measure
  const double unit = tensor == "embedding" ? 0 : floor.unit;  // it is looked up: no sum comes before its rounding
  TensorFloor& entry = floor.tensors[{layer, tensor}];
  entry.rel_token_max = std::max({entry.rel_token_max, error.value, kLeastFloor, unit});
  entry.max_abs = std::max({entry.max_abs, worst_row(difference.row_max_abs, left_out).value, kLeastFloor * scale});
  if (difference.row_rel_trimmed.empty()) return;
  const Worst trimmed = worst_row(difference.row_rel_trimmed, left_out);
  entry.rel_token_max_trimmed = std::max({entry.rel_token_max_trimmed.value_or(0), trimmed.value, kLeastFloor, unit});
}

/// The size of the numbers that a tensor is made of; a gap is a difference of selection scores, as large as router
/// logits.
double scale_of(const LayerDifference& layer, const std::string& tensor) {
  const auto logits = layer.tensors.find("router_logits");
  if (tensor == "router_gap" && logits != layer.tensors.end()) return logits->second.reference_max_abs;
  return layer.tensors.at(tensor).reference_max_abs;
}

void widen_logits(Floor& floor, const PromptDifference& prompt, RunMode mode) {
  if (!prompt.logits) return;
  const LogitsDifference& logits = *prompt.logits;
  const std::int64_t end = mode == RunMode::chained ? first_differing_token(prompt) : prompt.n_tokens;
  const LogitMetrics metrics = summarise_positions(logits, 0, end);
  if (metrics.n_positions == 0) return;
  const double least = kl_rounding(logits.n_vocab);
  LogitsFloor& all = floor.logits ? *floor.logits : floor.logits.emplace();
  all.kl_mean = std::max({all.kl_mean, *metrics.kl_mean, least});
  all.kl_max = std::max({all.kl_max, *metrics.kl_max, least});
  const double least_rel = std::max(kLeastFloor, floor.unit);
  all.max_abs_logit = std::max({all.max_abs_logit, *metrics.max_abs_logit, least_rel * logits.reference_max_abs});
  all.kl_unit = std::max(all.kl_unit, std::pow(floor.unit * logits.reference_std, 2) / 2);
  for (const LogitsRow& row : logits.rows) {
    if (row.difference.position >= end) continue;
    all.rel_token_max = std::max({all.rel_token_max, row.rel, least_rel});
    all.squared_error += row.squared_error;
  }
  all.n_positions += metrics.n_positions;
  all.n_vocab = logits.n_vocab;
}

/// What few tokens show by luck as nothing is filled in from what many numbers show: the router's logits (E a token)
/// stand behind gaps and weights, the logits (V a position) behind KL.
void fill_in(Floor& floor) {
  for (auto& [key, entry] : floor.tensors) {
    const TensorFloor* router = floor.find(key.first, "router_logits");
    if (router == nullptr) continue;
    // a gap is a difference of two scores; ln of a weight moves no more than its logit (sigmoid, softmax)
    if (key.second == "router_gap") entry.max_abs = std::max(entry.max_abs, router->max_abs);
    if (key.second == "expert_weights") entry.rel_token_max = std::max(entry.rel_token_max, router->max_abs);
  }
  if (floor.logits)
    floor.logits->kl_max = std::max({floor.logits->kl_max, floor.logits->kl_noise(), floor.logits->kl_unit});
}

/// Gives each tensor the largest errors that it has in any layer.
void widen_over_layers(Floor& floor) {
  std::map<std::string, TensorFloor> widest;
  for (const auto& [key, entry] : floor.tensors) {
    TensorFloor& all = widest[key.second];
    all.rel_token_max = std::max(all.rel_token_max, entry.rel_token_max);
    all.rel_token_max_trimmed = std::max(all.rel_token_max_trimmed, entry.rel_token_max_trimmed);
    all.max_abs = std::max(all.max_abs, entry.max_abs);
  }
  for (auto& [key, entry] : floor.tensors) {
    const double quartile = entry.rel_token_quartile;
    entry = widest.at(key.second);
    entry.rel_token_quartile = quartile;
  }
}

void take_quartiles(Floor& floor, const RowErrors& errors) {
  for (const auto& [key, group] : errors.groups()) {
    const double quartile = std::max(group.upper_quartile(), kLeastFloor);
    const auto entry = floor.tensors.find(key);
    if (entry != floor.tensors.end()) entry->second.rel_token_quartile = quartile;
    if (floor.logits && key.second == "logits") floor.logits->rel_token_quartile = quartile;
  }
}

/// The widest floor of a relative error and where it was measured; NaN is the widest.
struct Widest {
  double floor = 0;
  Where where;

  void add(std::int64_t layer, const std::string& tensor, double value) {
    if (std::isnan(floor) || value <= floor) return;
    floor = value;
    where.layer.reset();
    if (layer != kNoLayer) where.layer = layer;
    where.tensor = tensor;
  }
};

/// Of all floors that bounds or ties rest on; where the precision rounds, of what most rows show. A chained run judges
/// no layer's tensors, but its ties rest on the scores that choices are made by.
Widest widest_floor(const Floor& floor, RunMode mode) {
  Widest widest;
  const bool rounds = floor.unit > 0;
  for (const auto& [key, entry] : floor.tensors) {
    const auto& [layer, tensor] = key;
    if (tensor == "router_gap" || (mode == RunMode::chained && layer != kNoLayer && !is_score(tensor))) continue;
    widest.add(layer, tensor, rounds ? entry.rel_token_quartile : entry.rel_token_max);
    if (tensor == "residual" && entry.rel_token_max_trimmed && !rounds)
      widest.add(layer, "residual-trimmed", *entry.rel_token_max_trimmed);
  }
  if (floor.logits)
    widest.add(kNoLayer, "logits", rounds ? floor.logits->rel_token_quartile : floor.logits->rel_token_max);
  return widest;
}

/// The first layer whose gaps moved by more than scores that move as its router's logits do allow: the k-th and the
/// next score each move no further than the scores do.
std::optional<std::int64_t> loose_gap(const Floor& floor) {
  for (const auto& [key, entry] : floor.tensors) {
    if (key.second != "router_gap") continue;
    const TensorFloor* router = floor.find(key.first, "router_logits");
    if (router == nullptr || !(entry.max_abs <= 2 * router->max_abs)) return key.first;
  }
  return std::nullopt;
}

/// Differing choices inside the reference must be ties as well, and no floor may ask for a bound that proves nothing.
Finding trust(const DumpDifference& difference, const Floor& floor, RunMode mode) {
  const double loosest_bound = floor.unit <= 0            ? kLoosestBound
                               : mode == RunMode::chained ? kLoosestRoundedChainedBound
                                                          : kLoosestRoundedBound;
  Finding finding{difference.check + "/floor", difference.check, Status::held, {}, loosest_bound, {}, {}, ""};
  std::int64_t n_faults = 0;
  for (const PromptDifference& prompt : difference.prompts) {
    for (const LayerTies& ties : judge_ties(prompt, &floor, mode))
      n_faults += std::ssize(ties.blocks.faults) + std::ssize(ties.experts.faults);
  }
  const Widest widest = widest_floor(floor, mode);
  finding.value = kKappa * widest.floor;
  finding.floor = widest.floor;
  finding.where = widest.where;
  finding.text =
      fmt::format("widest bound {:.2e}; {} token-layer pairs with other experts or blocks left out, {} choices no ties",
                  kKappa * widest.floor, floor.tokens_left_out, n_faults);
  if (!(kKappa * widest.floor <= loosest_bound) || n_faults > 0 || floor.tensors.empty()) {
    finding.status = Status::mistrusted;
    finding.text = "the reference's two runs differ by more than rounding: " + finding.text;
  } else if (const auto layer = loose_gap(floor)) {
    finding.status = Status::mistrusted;
    finding.where = {};
    finding.where.layer = layer;
    finding.where.tensor = "router_gap";
    finding.text = fmt::format(
        "the gaps of layer {} differ by {:.2e} between the reference's two runs, more "
        "than twice what its router's logits do: they would excuse what is no tie",
        *layer, floor.find(*layer, "router_gap")->max_abs);
  }
  return finding;
}

}  // namespace

double LogitsFloor::kl_noise() const {
  return n_positions == 0 ? 0 : squared_error / static_cast<double>(n_positions * n_vocab) / 2;
}

const TensorFloor* Floor::find(std::int64_t layer, const std::string& tensor) const {
  const auto entry = tensors.find({layer, tensor});
  return entry == tensors.end() ? nullptr : &entry->second;
}

std::optional<double> Floor::quartile(std::int64_t layer, const std::string& tensor) const {
  if (tensor == "logits") return logits ? std::optional(logits->rel_token_quartile) : std::nullopt;
  const TensorFloor* entry = find(layer, tensor);
  return entry == nullptr ? std::nullopt : std::optional(entry->rel_token_quartile);
}

Floor measure_floor(const DumpDifference& difference, RunMode mode, double unit) {
  Floor floor;
  std::size_t n_layers = 1;
  for (const PromptDifference& prompt : difference.prompts) n_layers = std::max(n_layers, prompt.layers.size());
  floor.unit = unit;
  if (mode == RunMode::chained)
    floor.unit = std::min(unit * std::sqrt(static_cast<double>(n_layers)), kLoosestRoundedChainedBound / kKappa);
  RowErrors errors;
  for (const PromptDifference& prompt : difference.prompts) {
    const auto add = [&](std::int64_t layer, const std::string& name, const TensorDifference& tensor, double scale,
                         const std::vector<bool>& left_out) {
      widen(floor, layer, name, tensor, scale, left_out);
      errors.add(layer, name, tensor.row_rel, left_out);
    };
    for (const auto& [name, tensor] : prompt.tensors) {
      add(kNoLayer, name, tensor, tensor.reference_max_abs, rows_left_out(prompt, nullptr, name, mode, unit > 0));
    }
    for (const LayerDifference& layer : prompt.layers) {
      for (const auto& [name, tensor] : layer.tensors) {
        add(layer.layer, name, tensor, scale_of(layer, name), rows_left_out(prompt, &layer, name, mode, unit > 0));
      }
      const std::vector<bool> differing = rows_after_differing(layer, "residual", prompt.n_tokens);
      floor.tokens_left_out += std::count(differing.begin(), differing.end(), true);
    }
    widen_logits(floor, prompt, mode);
    if (prompt.logits)
      errors.add_logits(*prompt.logits, mode == RunMode::chained ? first_differing_token(prompt) : prompt.n_tokens);
  }
  take_quartiles(floor, errors);
  if (unit > 0) widen_over_layers(floor);
  fill_in(floor);
  floor.findings = difference.findings;
  floor.findings.push_back(trust(difference, floor, mode));
  return floor;
}

std::string element_type(const dump::Reader& dump) {
  for (const dump::PromptInfo& prompt : dump.prompts()) {
    std::vector<std::string> paths = {"embedding", "logits", "final_norm"};
    for (const std::int64_t layer : prompt.layers) paths.push_back(dump::layer_path(layer, "residual"));
    for (const dump::Schedule& schedule : prompt.schedules) paths.push_back("decode/" + schedule.name + "/logits");
    for (const std::string& path : paths) {
      if (const auto info = dump.find(prompt.name, path)) return info->type == dump::ElementType::f64 ? "f64" : "f32";
    }
  }
  return "none";
}

Finding floor_origin(const dump::Reader& reference, const dump::Reader& other, const std::string& check) {
  Finding finding{check + "/origin", check, Status::held, {}, {}, {}, {}, "one program's fp32 and fp64"};
  const dump::Header& ours = reference.header();
  const dump::Header& theirs = other.header();
  std::string doubt;
  if (ours.producer != theirs.producer || ours.producer_version != theirs.producer_version) {
    doubt = fmt::format("made by {} {} and {} {}", ours.producer, ours.producer_version, theirs.producer,
                        theirs.producer_version);
  } else if (ours.precision != theirs.precision) {
    doubt = fmt::format("of precisions '{}' and '{}'", ours.precision, theirs.precision);
  } else if (element_type(reference) != "f32" || element_type(other) != "f64") {
    doubt = fmt::format("of {} and {} values", element_type(reference), element_type(other));
  }
  if (doubt.empty()) return finding;
  finding.status = Status::mistrusted;
  finding.text = "no floor of one program's fp32 against its own fp64 in the same precision: the dumps are " + doubt;
  return finding;
}

nlohmann::json to_json(const Floor& floor) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto& [key, entry] : floor.tensors) {
    tensors.push_back({{"layer", key.first},
                       {"tensor", key.second},
                       {"rel_token_max", number(entry.rel_token_max)},
                       {"rel_token_max_trimmed", number(entry.rel_token_max_trimmed)},
                       {"rel_token_quartile", number(entry.rel_token_quartile)},
                       {"max_abs", number(entry.max_abs)}});
  }
  nlohmann::json logits;
  if (floor.logits) {
    logits = {{"kl_mean", number(floor.logits->kl_mean)},
              {"kl_max", number(floor.logits->kl_max)},
              {"max_abs_logit", number(floor.logits->max_abs_logit)},
              {"rel_token_max", number(floor.logits->rel_token_max)},
              {"rel_token_quartile", number(floor.logits->rel_token_quartile)},
              {"n_positions", floor.logits->n_positions}};
  }
  return {{"tensors", tensors}, {"tokens_left_out", floor.tokens_left_out}, {"logits", logits}};
}

}  // namespace kalibri::oracle

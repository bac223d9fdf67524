#include "oracle/verdict/floor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "oracle/verdict/rules.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

namespace {

/// Rows that say nothing about rounding: teacher-forced, what comes after a choice for a token where it differs;
/// chained, everything from the prompt's first differing token on.
std::vector<bool> rows_left_out(const PromptDifference& prompt, const LayerDifference* layer, const std::string& tensor,
                                RunMode mode) {
  const auto n_tokens = static_cast<std::size_t>(prompt.n_tokens);
  if (mode == RunMode::chained) {
    std::vector<bool> left_out(n_tokens, false);
    std::fill(left_out.begin() + first_differing_token(prompt), left_out.end(), true);
    return left_out;
  }
  return layer == nullptr ? std::vector<bool>() : rows_after_differing(*layer, tensor, prompt.n_tokens);
}

void widen(Floor& floor, std::int64_t layer, const std::string& tensor, const TensorDifference& difference,
           double scale, const std::vector<bool>& left_out) {
  const Worst error = worst_row(difference.row_rel, left_out);
  if (error.row < 0) return;  // nothing left to measure
  TensorFloor& entry = floor.tensors[{layer, tensor}];
  entry.rel_token_max = std::max({entry.rel_token_max, error.value, kLeastFloor});
  entry.max_abs = std::max({entry.max_abs, worst_row(difference.row_max_abs, left_out).value, kLeastFloor * scale});
  if (difference.row_rel_trimmed.empty()) return;
  const Worst trimmed = worst_row(difference.row_rel_trimmed, left_out);
  entry.rel_token_max_trimmed = std::max({entry.rel_token_max_trimmed.value_or(0), trimmed.value, kLeastFloor});
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
  all.max_abs_logit = std::max({all.max_abs_logit, *metrics.max_abs_logit, kLeastFloor * logits.reference_max_abs});
  for (const LogitsRow& row : logits.rows) {
    if (row.difference.position >= end) continue;
    all.rel_token_max = std::max({all.rel_token_max, row.rel, kLeastFloor});
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
  if (floor.logits) floor.logits->kl_max = std::max(floor.logits->kl_max, floor.logits->kl_noise());
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

/// Of all floors that bounds or ties rest on. A chained run judges no layer's tensors, but its ties rest on the scores
/// that choices are made by.
Widest widest_floor(const Floor& floor, RunMode mode) {
  Widest widest;
  for (const auto& [key, entry] : floor.tensors) {
    const auto& [layer, tensor] = key;
    const bool decides_ties = tensor == "router_logits" || tensor == "index_scores";
    if (tensor == "router_gap" || (mode == RunMode::chained && layer != kNoLayer && !decides_ties)) continue;
    widest.add(layer, tensor, entry.rel_token_max);
    if (tensor == "residual" && entry.rel_token_max_trimmed)
      widest.add(layer, "residual-trimmed", *entry.rel_token_max_trimmed);
  }
  if (floor.logits) widest.add(kNoLayer, "logits", floor.logits->rel_token_max);
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
Finding trust(const DumpDifference& difference, const Floor& floor, RunMode mode, double loosest_bound) {
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

Floor measure_floor(const DumpDifference& difference, RunMode mode, double loosest_bound) {
  Floor floor;
  for (const PromptDifference& prompt : difference.prompts) {
    for (const auto& [name, tensor] : prompt.tensors) {
      widen(floor, kNoLayer, name, tensor, tensor.reference_max_abs, rows_left_out(prompt, nullptr, name, mode));
    }
    for (const LayerDifference& layer : prompt.layers) {
      for (const auto& [name, tensor] : layer.tensors) {
        widen(floor, layer.layer, name, tensor, scale_of(layer, name), rows_left_out(prompt, &layer, name, mode));
      }
      const std::vector<bool> differing = rows_after_differing(layer, "residual", prompt.n_tokens);
      floor.tokens_left_out += std::count(differing.begin(), differing.end(), true);
    }
    widen_logits(floor, prompt, mode);
  }
  fill_in(floor);
  floor.findings = difference.findings;
  floor.findings.push_back(trust(difference, floor, mode, loosest_bound));
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

bool is_rounded(const dump::Reader& reference, const dump::Reader& other, const dump::Reader* candidate) {
  if (candidate == nullptr || element_type(reference) != "f32" || element_type(other) != "f32") return false;
  const std::string& precision = other.header().precision;
  return precision != reference.header().precision && precision == candidate->header().precision &&
         other.header().producer != candidate->header().producer;
}

Finding floor_origin(const dump::Reader& reference, const dump::Reader& other, const dump::Reader* candidate,
                     const std::string& check) {
  Finding finding{check + "/origin", check, Status::held, {}, {}, {}, {}, "one program's fp32 and fp64"};
  const dump::Header& ours = reference.header();
  const dump::Header& theirs = other.header();
  std::string doubt;
  if (ours.producer != theirs.producer || ours.producer_version != theirs.producer_version) {
    doubt = fmt::format("made by {} {} and {} {}", ours.producer, ours.producer_version, theirs.producer,
                        theirs.producer_version);
  } else if (is_rounded(reference, other, candidate)) {
    finding.text = fmt::format("one program's precisions {} and {}", ours.precision, theirs.precision);
  } else if (element_type(reference) != "f32" || element_type(other) != "f64") {
    doubt = fmt::format("of {} and {} values", element_type(reference), element_type(other));
  }
  if (doubt.empty()) return finding;
  finding.status = Status::mistrusted;
  finding.text =
      "no floor of one program's fp32 against its own fp64, or its own in the candidate's precision: the "
      "dumps are " +
      doubt;
  return finding;
}

nlohmann::json to_json(const Floor& floor) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto& [key, entry] : floor.tensors) {
    tensors.push_back({{"layer", key.first},
                       {"tensor", key.second},
                       {"rel_token_max", number(entry.rel_token_max)},
                       {"rel_token_max_trimmed", number(entry.rel_token_max_trimmed)},
                       {"max_abs", number(entry.max_abs)}});
  }
  nlohmann::json logits;
  if (floor.logits) {
    logits = {{"kl_mean", number(floor.logits->kl_mean)},
              {"kl_max", number(floor.logits->kl_max)},
              {"max_abs_logit", number(floor.logits->max_abs_logit)},
              {"rel_token_max", number(floor.logits->rel_token_max)},
              {"n_positions", floor.logits->n_positions}};
  }
  return {{"tensors", tensors}, {"tokens_left_out", floor.tokens_left_out}, {"logits", logits}};
}

}  // namespace kalibri::oracle

#include "oracle/verdict/ties.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string_view>

#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

namespace {

/// Which of a layer's choices a tensor comes after: none, that of blocks, or that of experts, too.
enum class Stage : std::uint8_t { first, after_blocks, after_experts };

Stage stage_of(std::string_view tensor) {
  constexpr std::array<std::string_view, 8> kFirst = {
      "attn_inject", "attn_mixed", "index_scores", "k", "ngram_embedding", "ple_out", "q", "v"};
  constexpr std::array<std::string_view, 4> kLast = {"expert_weights", "moe_out", "residual", "routed_out"};
  if (std::find(kFirst.begin(), kFirst.end(), tensor) != kFirst.end()) return Stage::first;
  return std::find(kLast.begin(), kLast.end(), tensor) != kLast.end() ? Stage::after_experts : Stage::after_blocks;
}

bool differs_at(const std::vector<bool>& differs, std::int64_t token) {
  return !differs.empty() && differs[static_cast<std::size_t>(token)];
}

const std::vector<bool>& differing_blocks(const LayerDifference& layer) {
  static const std::vector<bool> kNone;
  return layer.selection ? layer.selection->differs : kNone;
}

const std::vector<bool>& differing_experts(const LayerDifference& layer) {
  static const std::vector<bool> kNone;
  return layer.routing ? layer.routing->differs : kNone;
}

/// The first of n_tokens whose blocks or experts differ in this layer; n_tokens when none does.
std::int64_t first_in_layer(const LayerDifference& layer, std::int64_t n_tokens) {
  std::int64_t t = 0;
  while (t < n_tokens && !differs_at(differing_blocks(layer), t) && !differs_at(differing_experts(layer), t)) ++t;
  return t;
}

/// Sorts the differing tokens. tie_gap: a token's gap when it is a tie, else nothing.
ChoiceTies judge_choice(const std::vector<bool>& differs, const std::function<bool(std::int64_t)>& follows,
                        const std::function<std::optional<double>(std::size_t)>& tie_gap) {
  ChoiceTies ties;
  for (std::int64_t t = 0; t < std::ssize(differs); ++t) {
    if (!differs_at(differs, t)) continue;
    if (follows(t)) {
      ++ties.n_following;
    } else if (const auto gap = tie_gap(static_cast<std::size_t>(t))) {
      ties.excused.push_back(t);
      ties.largest_gap_excused = std::max(ties.largest_gap_excused, *gap);
    } else {
      ties.faults.push_back(t);
    }
  }
  return ties;
}

}  // namespace

std::vector<bool> LayerTies::left_out(const std::string& tensor, std::int64_t n_tokens) const {
  const Stage stage = stage_of(tensor);
  std::vector<bool> rows;
  const auto leave_out = [&](const ChoiceTies& ties) {
    if (!ties.excused.empty()) rows.resize(static_cast<std::size_t>(n_tokens));
    for (const std::int64_t t : ties.excused) rows[static_cast<std::size_t>(t)] = true;
  };
  if (stage != Stage::first) leave_out(blocks);
  if (stage == Stage::after_experts) leave_out(experts);
  return rows;
}

std::vector<bool> rows_after_differing(const LayerDifference& layer, const std::string& tensor, std::int64_t n_tokens) {
  const Stage stage = stage_of(tensor);
  std::vector<bool> rows(static_cast<std::size_t>(n_tokens), false);
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    rows[static_cast<std::size_t>(t)] = (stage != Stage::first && differs_at(differing_blocks(layer), t)) ||
                                        (stage == Stage::after_experts && differs_at(differing_experts(layer), t));
  }
  return rows;
}

std::int64_t first_differing_token(const PromptDifference& prompt) {
  return first_differing_before(prompt, std::numeric_limits<std::int64_t>::max());
}

std::int64_t first_differing_before(const PromptDifference& prompt, std::int64_t layer) {
  std::int64_t first = prompt.n_tokens;
  for (const LayerDifference& earlier : prompt.layers) {
    if (earlier.layer < layer) first = first_in_layer(earlier, first);
  }
  return first;
}

double block_noise(const Floor* floor, std::int64_t layer) {
  const TensorFloor* scores = floor == nullptr ? nullptr : floor->find(layer, "index_scores");
  return scores == nullptr ? 0 : kKappa * scores->max_abs;
}

std::vector<LayerTies> judge_ties(const PromptDifference& prompt, const Floor* floor, RunMode mode) {
  std::vector<LayerTies> result;
  std::int64_t reached = prompt.n_tokens;  // chained: tokens from here on have other inputs
  for (const LayerDifference& layer : prompt.layers) {
    LayerTies& ties = result.emplace_back();
    const auto is_reached = [reached](std::int64_t t) { return t >= reached; };
    const double noise = block_noise(floor, layer.layer);
    ties.blocks = judge_choice(differing_blocks(layer), is_reached, [&](std::size_t t) {
      const double gap = layer.selection->gap[t];
      return gap <= noise ? std::optional(gap) : std::nullopt;
    });
    const TensorFloor* gap_floor = floor == nullptr ? nullptr : floor->find(layer.layer, "router_gap");
    const auto follows = [&](std::int64_t t) { return is_reached(t) || differs_at(differing_blocks(layer), t); };
    ties.experts = judge_choice(differing_experts(layer), follows, [&](std::size_t t) {
      const Routing& routing = *layer.routing;
      // A rounding moves scores by more than near ones are apart: it may exchange two, or another than the k-th.
      const bool may_be_tie = routing.is_single_swap[t] || (floor != nullptr && floor->unit > 0);
      const bool is_tie =
          gap_floor != nullptr && may_be_tie && t < routing.gap.size() && routing.gap[t] <= kKappa * gap_floor->max_abs;
      return is_tie ? std::optional(routing.gap[t]) : std::nullopt;
    });
    if (mode == RunMode::chained) reached = first_in_layer(layer, reached);
  }
  return result;
}

}  // namespace kalibri::oracle

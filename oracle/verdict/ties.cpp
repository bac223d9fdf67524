#include "oracle/verdict/ties.hpp"

#include <algorithm>

#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

namespace {

/// Whether token t's difference in this layer is a tie within the measured noise of the gap at the cut.
bool is_tie(const Routing& routing, std::size_t t, const TensorFloor* gap_floor) {
  return gap_floor != nullptr && routing.is_single_swap[t] && t < routing.gap.size() &&
         routing.gap[t] <= kKappa * gap_floor->max_abs;
}

}  // namespace

bool is_after_router(const std::string& tensor) {
  return tensor == "expert_weights" || tensor == "moe_out" || tensor == "residual" || tensor == "routed_out";
}

std::int64_t first_differing_token(const PromptDifference& prompt) {
  std::int64_t first = prompt.n_tokens;
  for (const LayerDifference& layer : prompt.layers) {
    if (!layer.routing) continue;
    const auto& differs = layer.routing->differs;
    first = std::min<std::int64_t>(first, std::find(differs.begin(), differs.end(), true) - differs.begin());
  }
  return first;
}

std::vector<LayerTies> judge_ties(const PromptDifference& prompt, const Floor* floor, RunMode mode) {
  std::vector<LayerTies> result;
  std::int64_t reached =
      prompt.n_tokens;  // chained: tokens from here on differed in an earlier layer, or come after one
  for (const LayerDifference& layer : prompt.layers) {
    LayerTies& ties = result.emplace_back();
    if (!layer.routing) continue;
    const TensorFloor* gap_floor = floor == nullptr ? nullptr : floor->find(layer.layer, "router_gap");
    std::int64_t first_here = prompt.n_tokens;
    for (std::int64_t t = 0; t < prompt.n_tokens; ++t) {
      const auto i = static_cast<std::size_t>(t);
      if (!layer.routing->differs[i]) continue;
      first_here = std::min(first_here, t);
      if (t >= reached) {
        ++ties.n_following;
      } else if (is_tie(*layer.routing, i, gap_floor)) {
        ++ties.n_excused;
        ties.largest_gap_excused = std::max(ties.largest_gap_excused, layer.routing->gap[i]);
        ties.left_out.resize(layer.routing->differs.size());
        ties.left_out[i] = true;
      } else {
        ties.faults.push_back(t);
      }
    }
    if (mode == RunMode::chained) reached = std::min(reached, first_here);
  }
  return result;
}

}  // namespace kalibri::oracle

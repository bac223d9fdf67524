#include "oracle/compare/routing.hpp"

#include <algorithm>
#include <cmath>

#include "oracle/metrics/routes.hpp"

namespace kalibri::oracle {

namespace {

using Ids = std::span<const std::int64_t>;

/// Whether all but the last of `ours` (the k-th by falling score) are among `theirs`, and no more.
bool is_single_swap(Ids ours, Ids theirs) {
  const auto is_shared = [&theirs](std::int64_t id) {
    return std::find(theirs.begin(), theirs.end(), id) != theirs.end();
  };
  return std::all_of(ours.begin(), ours.end() - 1, is_shared) && !is_shared(ours.back());
}

/// Paired by expert id. A row whose sets differ has no pairs: it counts as equal, unless it holds a value that is not
/// finite.
TensorDifference compare_weights(Ids reference_ids, std::vector<double> reference, Ids candidate_ids,
                                 std::vector<double> candidate, const std::vector<bool>& differs) {
  const std::int64_t k = std::ssize(reference) / std::ssize(differs);
  reference = sort_weights_by_id(reference_ids, reference, k);
  candidate = sort_weights_by_id(candidate_ids, candidate, k);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (differs[i / static_cast<std::size_t>(k)] && std::isfinite(candidate[i])) candidate[i] = reference[i];
  }
  return compare_rows(reference, candidate, k);
}

}  // namespace

std::int64_t Routing::n_differing() const { return std::count(differs.begin(), differs.end(), true); }

std::optional<Routing> compare_routing(const dump::Reader& reference, const dump::Reader& candidate,
                                       const std::string& prompt, std::int64_t layer) {
  const TensorRef our_ids{reference, prompt, dump::layer_path(layer, "expert_ids")};
  const TensorRef their_ids{candidate, prompt, our_ids.path};
  if (!reference.find(prompt, our_ids.path) || !candidate.find(prompt, our_ids.path)) return std::nullopt;
  const std::vector<std::int64_t> shape = common_shape(our_ids, their_ids);
  const std::int64_t n_tokens = shape.at(0);
  const std::vector<std::int64_t> ours = reference.read_i64(prompt, our_ids.path, 0, n_tokens);
  const std::vector<std::int64_t> theirs = candidate.read_i64(prompt, our_ids.path, 0, n_tokens);

  Routing routing;
  const RouteMetrics metrics = compare_routes(ours, theirs, shape.at(1));
  routing.same_frac = metrics.route_same_frac;
  routing.differs.resize(static_cast<std::size_t>(n_tokens));
  routing.is_single_swap.resize(static_cast<std::size_t>(n_tokens));
  const auto k = static_cast<std::size_t>(shape.at(1));
  for (const std::int64_t position : metrics.diff_positions) {
    const auto t = static_cast<std::size_t>(position);
    routing.differs[t] = true;
    routing.is_single_swap[t] = is_single_swap(Ids(ours).subspan(t * k, k), Ids(theirs).subspan(t * k, k));
  }
  const TensorRef our_weights{reference, prompt, dump::layer_path(layer, "expert_weights")};
  if (reference.find(prompt, our_weights.path) && candidate.find(prompt, our_weights.path)) {
    common_shape(our_weights, {candidate, prompt, our_weights.path});
    routing.weights = compare_weights(ours, reference.read_f64(prompt, our_weights.path, 0, n_tokens), theirs,
                                      candidate.read_f64(prompt, our_weights.path, 0, n_tokens), routing.differs);
  }
  const std::string gap_path = dump::layer_path(layer, "router_gap");
  if (reference.find(prompt, gap_path)) routing.gap = reference.read_f64(prompt, gap_path, 0, n_tokens);
  return routing;
}

}  // namespace kalibri::oracle

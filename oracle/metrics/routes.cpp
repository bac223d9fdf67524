// Sets of expert ids, compared after sorting.
#include "oracle/metrics/routes.hpp"

#include <algorithm>
#include <numeric>

namespace kalibri::oracle {

RouteMetrics compare_routes(std::span<const std::int64_t> reference_ids, std::span<const std::int64_t> candidate_ids,
                            std::int64_t top_k) {
  const auto k = static_cast<std::size_t>(top_k);
  const auto sorted_row = [k](std::span<const std::int64_t> ids, std::size_t row) {
    const std::span<const std::int64_t> part = ids.subspan(row * k, k);
    std::vector<std::int64_t> sorted(part.begin(), part.end());
    std::ranges::sort(sorted);
    return sorted;
  };
  RouteMetrics metrics;
  const std::size_t n_tokens = reference_ids.size() / k;
  for (std::size_t row = 0; row < n_tokens; ++row) {
    if (sorted_row(reference_ids, row) != sorted_row(candidate_ids, row)) {
      metrics.diff_positions.push_back(static_cast<std::int64_t>(row));
    }
  }
  metrics.n_tokens = static_cast<std::int64_t>(n_tokens);
  metrics.route_diff_tokens = std::ssize(metrics.diff_positions);
  if (n_tokens > 0) {
    metrics.route_same_frac =
        static_cast<double>(metrics.n_tokens - metrics.route_diff_tokens) / static_cast<double>(n_tokens);
  }
  return metrics;
}

std::vector<double> sort_weights_by_id(std::span<const std::int64_t> ids, std::span<const double> weights,
                                       std::int64_t top_k) {
  const auto k = static_cast<std::size_t>(top_k);
  std::vector<double> sorted;
  sorted.reserve(weights.size());
  std::vector<std::size_t> order(k);
  for (std::size_t begin = 0; begin < ids.size(); begin += k) {
    std::iota(order.begin(), order.end(), begin);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return ids[i]; });
    for (const std::size_t i : order) sorted.push_back(weights[i]);
  }
  return sorted;
}

}  // namespace kalibri::oracle

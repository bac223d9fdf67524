// Differences of two routers' choices. A token's choice is the set of its k expert ids; their order does not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kalibri::oracle {

struct RouteMetrics {
  std::int64_t n_tokens = 0;
  std::optional<double> route_same_frac;     // share of tokens with the same set; nothing without tokens
  std::int64_t route_diff_tokens = 0;        // number of tokens with different sets
  std::vector<std::int64_t> diff_positions;  // which, ascending
};

/// Compares ids [T, k] with ids [T, k], rows being positions 0, 1, … Both are sorted by row, then all k are compared.
RouteMetrics compare_routes(std::span<const std::int64_t> reference_ids, std::span<const std::int64_t> candidate_ids,
                            std::int64_t top_k);

/// Weights [T, k] reordered by rising expert id within each row, so that two routers' weights pair up.
std::vector<double> sort_weights_by_id(std::span<const std::int64_t> ids, std::span<const double> weights,
                                       std::int64_t top_k);

}  // namespace kalibri::oracle

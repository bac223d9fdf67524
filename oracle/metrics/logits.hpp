// Differences of two models' logits, position by position, so that [T, V] is never held whole: compare_logit_row() for
// each position, then summarise() over all of them or a band. All in f64; ties go to the lower id. No files, no bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "oracle/metrics/rows.hpp"

namespace kalibri::oracle {

/// One position. R = reference row [V], Q = candidate row [V].
struct LogitRowDifference {
  std::int64_t position = 0;
  double kl = 0;           // sum_v p_v (ln p_v - ln q_v), p = softmax(R), q = softmax(Q), in nats; not clamped at 0
  bool top1_same = false;  // argmax Q = argmax R
  double top5_share = 0;   // |topk(Q) and topk(R)| / k, k = min(5, V)
  double max_abs = 0;      // max |Q - R|
  std::int64_t reference_top = 0;       // argmax R
  std::int64_t candidate_top = 0;       // argmax Q
  std::optional<NotFinite> not_finite;  // the first; kl, top5_share and max_abs are NaN then, top1_same is false
};

/// Compares two rows of equal length V >= 1.
LogitRowDifference compare_logit_row(std::span<const double> reference, std::span<const double> candidate,
                                     std::int64_t position);

/// ln softmax(logits): logits - max - ln(sum exp(logits - max)). Finite logits only.
std::vector<double> log_softmax(std::span<const double> logits);

/// Ids of the k largest values, falling, ties by lower id. k <= values.size(), no NaN.
std::vector<std::int64_t> top_k(std::span<const double> values, std::size_t k);

/// Value at `fraction` of a sorted, not empty list: index a = fraction (n - 1), linear between its neighbours.
double percentile(std::span<const double> sorted, double fraction);

/// Nothing = no positions (status not_applicable).
struct LogitMetrics {
  std::int64_t n_positions = 0;
  std::optional<double> top1;  // share of positions with the same argmax
  std::optional<double> top5;  // mean of top5_share
  std::optional<double> kl_mean;
  std::optional<double> kl_p95;  // percentile(0.95) over positions
  std::optional<double> kl_max;
  std::optional<double> max_abs_logit;  // max over positions and ids
  std::optional<std::int64_t>
      worst_kl_pos;                     // position of kl_max, the first if tied; of the first value not finite, if any
  std::optional<NotFinite> not_finite;  // the first; every metric is NaN then
};

LogitMetrics summarise(std::span<const LogitRowDifference> positions);

/// Number of last positions that decode_max_diff looks at: min(8, T - 1).
constexpr std::int64_t decode_tail(std::int64_t n_tokens) { return n_tokens <= 8 ? n_tokens - 1 : 8; }

/// max |decode - prefill| over the last decode_tail(n_tokens) positions; `positions` compare the decode logits of one
/// engine with its prefill logits. Nothing when n_tokens is 1, or when one of those positions is not there.
std::optional<double> decode_max_diff(std::span<const LogitRowDifference> positions, std::int64_t n_tokens);

}  // namespace kalibri::oracle

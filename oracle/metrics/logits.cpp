// The logits' metrics. exp and log are the C library's: these numbers judge, they are no part of a model's answer.
#include "oracle/metrics/logits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kalibri::oracle {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::optional<NotFinite> find_not_finite(std::span<const double> reference, std::span<const double> candidate,
                                         std::int64_t position) {
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(reference[i])) return NotFinite{position, static_cast<std::int64_t>(i), true};
    if (!std::isfinite(candidate[i])) return NotFinite{position, static_cast<std::int64_t>(i), false};
  }
  return std::nullopt;
}

double kl_divergence(std::span<const double> reference, std::span<const double> candidate) {
  const std::vector<double> ln_p = log_softmax(reference);
  const std::vector<double> ln_q = log_softmax(candidate);
  double sum = 0;
  for (std::size_t v = 0; v < ln_p.size(); ++v) sum += std::exp(ln_p[v]) * (ln_p[v] - ln_q[v]);
  return sum;
}

}  // namespace

std::vector<double> log_softmax(std::span<const double> logits) {
  const double maximum = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - maximum);
  const double ln_sum = std::log(sum);
  std::vector<double> result;
  result.reserve(logits.size());
  for (const double logit : logits) result.push_back(logit - maximum - ln_sum);
  return result;
}

std::vector<std::int64_t> top_k(std::span<const double> values, std::size_t k) {
  std::vector<std::int64_t> best;  // by falling value; an equal value goes behind, so the lower id stays first
  const auto falls_before = [&](double value, std::int64_t id) { return value > values[static_cast<std::size_t>(id)]; };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (best.size() == k && !falls_before(values[i], best.back())) continue;
    best.insert(std::ranges::upper_bound(best, values[i], falls_before), static_cast<std::int64_t>(i));
    if (best.size() > k) best.pop_back();
  }
  return best;
}

LogitRowDifference compare_logit_row(std::span<const double> reference, std::span<const double> candidate,
                                     std::int64_t position) {
  LogitRowDifference difference;
  difference.position = position;
  difference.not_finite = find_not_finite(reference, candidate, position);
  if (difference.not_finite) {
    difference.kl = difference.top5_share = difference.max_abs = kNan;
    return difference;
  }
  const std::size_t k = std::min<std::size_t>(5, reference.size());
  const std::vector<std::int64_t> reference_top = top_k(reference, k);
  const std::vector<std::int64_t> candidate_top = top_k(candidate, k);
  const auto n_common = std::ranges::count_if(
      reference_top, [&](std::int64_t id) { return std::ranges::find(candidate_top, id) != candidate_top.end(); });
  difference.kl = kl_divergence(reference, candidate);
  difference.reference_top = reference_top[0];
  difference.candidate_top = candidate_top[0];
  difference.top1_same = reference_top[0] == candidate_top[0];
  difference.top5_share = static_cast<double>(n_common) / static_cast<double>(k);
  for (std::size_t v = 0; v < reference.size(); ++v) {
    difference.max_abs = std::max(difference.max_abs, std::abs(candidate[v] - reference[v]));
  }
  return difference;
}

double percentile(std::span<const double> sorted, double fraction) {
  const double index = fraction * static_cast<double>(sorted.size() - 1);
  const double below = sorted[static_cast<std::size_t>(std::floor(index))];
  const double above = sorted[static_cast<std::size_t>(std::ceil(index))];
  return below + (index - std::floor(index)) * (above - below);
}

LogitMetrics summarise(std::span<const LogitRowDifference> positions) {
  LogitMetrics metrics;
  metrics.n_positions = std::ssize(positions);
  if (positions.empty()) return metrics;
  double n_same = 0;
  double sum_top5 = 0;
  double sum_kl = 0;
  double max_abs = 0;
  std::vector<double> kl;
  for (const LogitRowDifference& row : positions) {
    if (std::isnan(row.kl)) {
      metrics.top1 = metrics.top5 = metrics.kl_mean = metrics.kl_p95 = metrics.kl_max = metrics.max_abs_logit = kNan;
      metrics.worst_kl_pos = row.position;
      metrics.not_finite = row.not_finite;
      return metrics;
    }
    if (kl.empty() || row.kl > *metrics.kl_max) {
      metrics.kl_max = row.kl;
      metrics.worst_kl_pos = row.position;
    }
    kl.push_back(row.kl);
    n_same += row.top1_same ? 1 : 0;
    sum_top5 += row.top5_share;
    sum_kl += row.kl;
    max_abs = std::max(max_abs, row.max_abs);
  }
  std::ranges::sort(kl);
  const auto n = static_cast<double>(positions.size());
  metrics.top1 = n_same / n;
  metrics.top5 = sum_top5 / n;
  metrics.kl_mean = sum_kl / n;
  metrics.kl_p95 = percentile(kl, 0.95);
  metrics.max_abs_logit = max_abs;
  return metrics;
}

std::optional<double> decode_max_diff(std::span<const LogitRowDifference> positions, std::int64_t n_tokens) {
  const std::int64_t first = n_tokens - decode_tail(n_tokens);
  double result = 0;
  std::int64_t n_found = 0;
  for (const LogitRowDifference& row : positions) {
    if (row.position < first || row.position >= n_tokens) continue;
    ++n_found;
    if (!(row.max_abs <= result)) result = row.max_abs;
    if (std::isnan(row.max_abs)) break;
  }
  if (std::isnan(result)) return result;
  return n_found > 0 && n_found == decode_tail(n_tokens) ? std::optional(result) : std::nullopt;
}

}  // namespace kalibri::oracle

// Sums are taken in rising element order within a row, then in row order: how rows are grouped into blocks changes no
// bit.
#include "oracle/metrics/rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kalibri::oracle {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Larger, where NaN (from finite values too large to square) is larger than all.
bool is_worse(double value, double worst) { return value > worst || (std::isnan(value) && !std::isnan(worst)); }

std::optional<double> ratio(double numerator, double denominator) {
  return denominator == 0 ? std::nullopt : std::optional(numerator / denominator);
}

}  // namespace

std::optional<double> RowDifference::rel() const {
  if (squared_norm == 0 && squared_error == 0) return std::nullopt;
  return std::sqrt(squared_error) / std::sqrt(squared_norm);
}

RowDifference compare_row(std::span<const double> reference, std::span<const double> candidate, std::int64_t position) {
  RowDifference row;
  row.position = position;
  row.n_elements = std::ssize(reference);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double h = reference[i];
    const double o = candidate[i];
    if (!std::isfinite(h) || !std::isfinite(o)) {
      row.not_finite = NotFinite{position, static_cast<std::int64_t>(i), !std::isfinite(h)};
      row.squared_error = row.squared_norm = row.candidate_norm2 = row.dot = row.sum_abs = row.max_abs = kNan;
      return row;
    }
    const double error = o - h;
    row.squared_error += error * error;
    row.squared_norm += h * h;
    row.candidate_norm2 += o * o;
    row.dot += o * h;
    row.sum_abs += std::abs(error);
    row.max_abs = std::max(row.max_abs, std::abs(error));
  }
  return row;
}

TensorMetrics summarise(std::span<const RowDifference> rows) {
  TensorMetrics metrics;
  metrics.n_rows = std::ssize(rows);
  double squared_error = 0;
  double squared_norm = 0;
  double sum_abs = 0;
  std::int64_t n_elements = 0;
  for (const RowDifference& row : rows) {
    if (row.not_finite) {
      metrics.max_abs = metrics.mean_abs = metrics.rel = metrics.rel_token_max = metrics.cos_last = kNan;
      metrics.max_abs_position = metrics.rel_token_max_position = row.position;
      metrics.not_finite = row.not_finite;
      return metrics;
    }
    squared_error += row.squared_error;
    squared_norm += row.squared_norm;
    sum_abs += row.sum_abs;
    n_elements += row.n_elements;
    if (row.n_elements > 0 && (!metrics.max_abs || is_worse(row.max_abs, *metrics.max_abs))) {
      metrics.max_abs = row.max_abs;
      metrics.max_abs_position = row.position;
    }
    const std::optional<double> rel = row.rel();
    if (rel && (!metrics.rel_token_max || is_worse(*rel, *metrics.rel_token_max))) {
      metrics.rel_token_max = rel;
      metrics.rel_token_max_position = row.position;
    }
  }
  metrics.mean_abs = ratio(sum_abs, static_cast<double>(n_elements));
  metrics.rel = ratio(std::sqrt(squared_error), std::sqrt(squared_norm));
  if (!rows.empty()) {
    const RowDifference& last = rows.back();
    metrics.cos_last = ratio(last.dot, std::sqrt(last.candidate_norm2) * std::sqrt(last.squared_norm));
  }
  return metrics;
}

}  // namespace kalibri::oracle

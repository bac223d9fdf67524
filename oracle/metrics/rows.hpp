// Differences of two tensors, row by row, so that neither is ever held whole: compare_row() for each row, then
// summarise() over all rows or those of a band. Formulas: the accuracy metrics of the published Kolibri 1 verification
// (max_abs, mean_abs, rel, cos_last, hidden_rel) and rel_token_max, all in f64. No files, no bounds, no verdicts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kalibri::oracle {

/// Where a value is NaN or infinite. It is never averaged: every metric over it is NaN, so that no bound holds.
struct NotFinite {
  std::int64_t position = 0;  // of the token
  std::int64_t element = 0;   // index in the row
  bool in_reference = false;  // else in the candidate
};

/// What one row adds to the metrics: h = reference row, o = candidate row.
struct RowDifference {
  std::int64_t position = 0;
  std::int64_t n_elements = 0;
  double squared_error = 0;             // sum (o - h)^2
  double squared_norm = 0;              // sum h^2
  double candidate_norm2 = 0;           // sum o^2
  double dot = 0;                       // sum o h
  double sum_abs = 0;                   // sum |o - h|
  double max_abs = 0;                   // max |o - h|
  std::optional<NotFinite> not_finite;  // the first; the sums are NaN then

  /// ||o - h|| / ||h||. Nothing when both norms are 0; infinite when only h is 0: an error there must not vanish.
  [[nodiscard]] std::optional<double> rel() const;
};

/// Compares two rows of equal length, in rising element order.
RowDifference compare_row(std::span<const double> reference, std::span<const double> candidate, std::int64_t position);

/// Metrics of a tensor [T, R]; nothing = the value has no meaning there (status not_applicable).
struct TensorMetrics {
  std::int64_t n_rows = 0;
  std::optional<double> max_abs;            // max |o - h|; nothing without elements
  std::optional<double> mean_abs;           // mean |o - h|; nothing without elements
  std::optional<double> rel;                // ||o - h||_F / ||h||_F; nothing when ||h||_F = 0
  std::optional<double> rel_token_max;      // max over rows of RowDifference::rel(); nothing when no row has one
  std::optional<double> cos_last;           // o.h / (||o|| ||h||) of the last row; nothing when a norm is 0
  std::int64_t max_abs_position = 0;        // the first row with the largest |o - h|
  std::int64_t rel_token_max_position = 0;  // the first row with the largest rel()
  std::optional<NotFinite> not_finite;      // the first; every metric is NaN then
};

/// Metrics over `rows`. `hidden_rel` is `rel` over the rows of the final norm.
TensorMetrics summarise(std::span<const RowDifference> rows);

}  // namespace kalibri::oracle

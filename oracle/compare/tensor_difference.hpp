// The difference of one tensor between two dumps, read in blocks of rows, so that memory does not grow with its width.
// It keeps two numbers a row, so that a later judgement may leave rows out. It knows neither bounds nor what the tensor
// means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oracle/compare/number_format.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/metrics/rows.hpp"

namespace kalibri::oracle {

/// One dataset of one prompt in an open dump.
struct TensorRef {
  const dump::Reader& dump;
  const std::string& prompt;
  std::string path;
};

/// Row p of the tensor is position p.
struct TensorDifference {
  TensorMetrics metrics;                // over all rows
  double reference_max_abs = 0;         // max |h|
  FormatCount format;                   // over all elements
  std::vector<double> row_rel;          // ||o_p - h_p|| / ||h_p||; 0 where both are 0
  std::vector<double> row_max_abs;      // max |o_p - h_p|
  std::vector<double> row_rel_trimmed;  // row_rel without the channels of largest |h_p|; empty for narrow rows
  std::vector<std::optional<double>> rel_per_stream;  // metrics.rel of each of n_streams equal parts; empty for one
};

/// Channels that row_rel_trimmed leaves out (with one channel of 6,000 and the others near 1, row_rel is blind to the
/// others), and the narrowest row that has it: of a narrower one only channels that happen to lie near zero would
/// remain.
inline constexpr std::int64_t kTrimmedChannels = 8;
inline constexpr std::int64_t kTrimmedMinWidth = 32;

/// Both must exist. Throws dump::Error when their shapes differ (a refused comparison).
TensorDifference compare_tensor(const TensorRef& reference, const TensorRef& candidate, std::int64_t n_streams = 1);

/// The same over rows that are at hand, [n_rows, width].
TensorDifference compare_rows(std::span<const double> reference, std::span<const double> candidate, std::int64_t width);

/// The shape of both. Throws dump::Error when they differ.
std::vector<std::int64_t> common_shape(const TensorRef& reference, const TensorRef& candidate);

/// Rows of `width` elements that are read at a time: about a million elements.
std::int64_t rows_per_block(std::int64_t width);

/// The largest of `values` over rows that are not in `left_out` (empty: none is), with its row; NaN counts as largest.
struct Worst {
  double value = 0;
  std::int64_t row = -1;  // -1: no row
};
Worst worst_row(const std::vector<double>& values, const std::vector<bool>& left_out = {});

}  // namespace kalibri::oracle

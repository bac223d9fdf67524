#include "oracle/compare/tensor_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

namespace kalibri::oracle {

namespace {

constexpr std::int64_t kBlockElements = std::int64_t{1} << 20;

using Row = std::span<const double>;

/// The rows of one tensor while they pass by.
class Rows {
 public:
  Rows(std::int64_t width, std::int64_t n_streams)
      : width_(static_cast<std::size_t>(width)), streams_(static_cast<std::size_t>(n_streams)) {}

  /// [n, width] of each side.
  void add(Row reference, Row candidate) {
    for (std::size_t begin = 0; begin < reference.size(); begin += width_) {
      add_row(reference.subspan(begin, width_), candidate.subspan(begin, width_));
    }
    difference_.format.add(reference, candidate);
  }

  [[nodiscard]] TensorDifference result() {
    difference_.metrics = summarise(rows_);
    if (streams_.size() > 1) {
      for (const auto& stream : streams_) difference_.rel_per_stream.push_back(summarise(stream).rel);
    }
    return std::move(difference_);
  }

 private:
  void add_row(Row h, Row o) {
    const std::int64_t position = std::ssize(rows_);
    rows_.push_back(compare_row(h, o, position));
    difference_.row_rel.push_back(rel_or_zero(rows_.back()));
    difference_.row_max_abs.push_back(rows_.back().max_abs);
    for (const double value : h)
      difference_.reference_max_abs = std::max(difference_.reference_max_abs, std::abs(value));
    if (std::ssize(h) >= kTrimmedMinWidth) {
      difference_.row_rel_trimmed.push_back(rows_.back().not_finite ? rows_.back().max_abs
                                                                    : rel_trimmed(h, o, position));
    }
    if (streams_.size() == 1) return;
    const std::size_t stream_width = width_ / streams_.size();
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      streams_[s].push_back(
          compare_row(h.subspan(s * stream_width, stream_width), o.subspan(s * stream_width, stream_width), position));
    }
  }

  /// NaN for a row that is not finite.
  static double rel_or_zero(const RowDifference& row) { return row.not_finite ? row.max_abs : row.rel().value_or(0); }

  double rel_trimmed(Row h, Row o, std::int64_t position) {
    order_.resize(h.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::nth_element(order_.begin(), order_.begin() + kTrimmedChannels, order_.end(),
                     [&h](std::size_t a, std::size_t b) {
                       return std::abs(h[a]) != std::abs(h[b]) ? std::abs(h[a]) > std::abs(h[b]) : a < b;
                     });
    std::sort(order_.begin() + kTrimmedChannels, order_.end());
    std::vector<double> reference, candidate;
    for (auto j = order_.begin() + kTrimmedChannels; j != order_.end(); ++j) {
      reference.push_back(h[*j]);
      candidate.push_back(o[*j]);
    }
    return rel_or_zero(compare_row(reference, candidate, position));
  }

  std::size_t width_;
  TensorDifference difference_;
  std::vector<RowDifference> rows_;
  std::vector<std::vector<RowDifference>> streams_;
  std::vector<std::size_t> order_;  // scratch
};

}  // namespace

std::int64_t rows_per_block(std::int64_t width) {
  return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, width));
}

std::vector<std::int64_t> common_shape(const TensorRef& reference, const TensorRef& candidate) {
  const auto h = reference.dump.find(reference.prompt, reference.path).value();
  const auto o = candidate.dump.find(candidate.prompt, candidate.path).value();
  if (h.shape != o.shape) {
    throw dump::Error(
        fmt::format("{}: {}/{}: shape [{}], expected [{}] as {} has it: not the same model or prompt; refused",
                    candidate.dump.path().string(), candidate.prompt, candidate.path, fmt::join(o.shape, ", "),
                    fmt::join(h.shape, ", "), reference.dump.path().string()));
  }
  return h.shape;
}

TensorDifference compare_tensor(const TensorRef& reference, const TensorRef& candidate, std::int64_t n_streams) {
  const std::vector<std::int64_t> shape = common_shape(reference, candidate);
  const std::int64_t width = std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
  Rows rows(width, width % n_streams == 0 ? n_streams : 1);
  const std::int64_t n_block = rows_per_block(width);
  for (std::int64_t first = 0; first < shape.front(); first += n_block) {
    const std::int64_t n = std::min(n_block, shape.front() - first);
    rows.add(reference.dump.read_f64(reference.prompt, reference.path, first, n),
             candidate.dump.read_f64(candidate.prompt, candidate.path, first, n));
  }
  return rows.result();
}

TensorDifference compare_rows(std::span<const double> reference, std::span<const double> candidate,
                              std::int64_t width) {
  Rows rows(width, 1);
  rows.add(reference, candidate);
  return rows.result();
}

Worst worst_row(const std::vector<double>& values, const std::vector<bool>& left_out) {
  Worst worst;
  for (std::size_t i = 0; i < values.size() && !std::isnan(worst.value); ++i) {
    if (i < left_out.size() && left_out[i]) continue;
    if (worst.row < 0 || values[i] > worst.value || std::isnan(values[i]))
      worst = {values[i], static_cast<std::int64_t>(i)};
  }
  return worst;
}

}  // namespace kalibri::oracle

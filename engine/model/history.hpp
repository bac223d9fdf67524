// The last rows of a sequence that a causal convolution still needs, and the rows of a chunk behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kalibri::model {

/// Rows [n_kept, width] before the next token, oldest first; zero where the sequence has not begun.
class RowHistory {
 public:
  RowHistory(std::int64_t n_kept, std::int64_t width)
      : n_kept_(n_kept), width_(width), rows_(static_cast<std::size_t>(n_kept * width)) {}

  /// joined [n_kept + n, width] <- the history, then `rows` [n, width]; the history becomes the last n_kept of them.
  void extend(const float* rows, std::int64_t n, float* joined) {
    std::copy(rows_.begin(), rows_.end(), joined);
    std::copy_n(rows, n * width_, joined + n_kept_ * width_);
    std::copy_n(joined + n * width_, n_kept_ * width_, rows_.begin());
  }
  [[nodiscard]] std::int64_t n_kept() const { return n_kept_; }
  [[nodiscard]] const std::vector<float>& rows() const { return rows_; }

 private:
  std::int64_t n_kept_;
  std::int64_t width_;
  std::vector<float> rows_;
};

}  // namespace kalibri::model

// Keys and values of one attention layer, for one sequence. A query at position p sees the `window` newest positions,
// its own included. The cache holds no more rows than that: a ring where the window is short, growing rows where it is
// not. It knows no heads: a row is whatever the layer stores for one position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/aligned.hpp"
#include "engine/kernels/kernels.hpp"

namespace kalibri::runtime {

/// The keys and values that one query sees, oldest first: one run, or two where the ring has wrapped.
struct VisibleRows {
  kernels::KeyRun runs[2];
  std::int64_t n_runs = 1;
  std::int64_t first_pos = 0;
  [[nodiscard]] std::int64_t n_rows() const { return runs[0].n_rows + runs[1].n_rows; }
};

/// Room for the rows of one append, shared by all layers of a session: only the layer at work needs it.
struct KvStaging {
  AlignedFloats keys;
  AlignedFloats values;
};

class KvCache {
 public:
  /// window >= 1 in positions (own key counted); max_tokens: longest sequence; row_size in floats.
  KvCache(std::int64_t window, std::int64_t max_tokens, std::int64_t row_size);
  /// A copy holds the same rows (a snapshot); what the last append could show is not copied.
  KvCache(const KvCache& other);
  KvCache& operator=(const KvCache& other);
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) noexcept = default;

  /// Positions stored so far: the position of the next row.
  [[nodiscard]] std::int64_t position() const { return position_; }
  [[nodiscard]] std::int64_t window() const { return window_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// Takes the next n positions' rows, keys and values [n, row_size], so that `visible` can be asked for each of them
  /// `staging` is used again. One row goes straight into its slot. Several that wrap the ring are kept in `staging`
  /// beside the rows that the first of them still sees, since writing them over the ring loses keys that the earlier
  /// ones need.
  void append(const float* keys, const float* values, std::int64_t n, KvStaging& staging);

  /// What the query at `pos` sees; pos is one of the positions of the last append.
  [[nodiscard]] VisibleRows visible(std::int64_t pos) const;

  /// The row of a position that is stored, where the cache has not wrapped.
  [[nodiscard]] const float* key_row(std::int64_t pos) const { return keys_.get() + pos * row_size_; }
  [[nodiscard]] const float* value_row(std::int64_t pos) const { return values_.get() + pos * row_size_; }

  /// Slot storage [capacity, row_size], for tests that poison rows which must not be read.
  [[nodiscard]] std::span<float> key_slots();
  [[nodiscard]] std::span<float> value_slots();

 private:
  void store(const float* keys, const float* values, std::int64_t first_pos, std::int64_t n);

  std::int64_t window_;
  std::int64_t capacity_;  // min(window, max_tokens); position p lies in slot p mod capacity
  std::int64_t row_size_;
  std::int64_t position_ = 0;
  AlignedArray keys_;
  AlignedArray values_;

  // The last append where it wrapped the ring: rows of positions from staged_first_ on, in order; otherwise null.
  const KvStaging* staged_ = nullptr;
  std::int64_t staged_first_ = 0;
};

}  // namespace kalibri::runtime

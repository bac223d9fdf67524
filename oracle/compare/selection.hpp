// Which blocks of earlier tokens each query of sparse attention kept on the two sides. All is read from the dumps: a
// row of the reference's index_scores begins with one score for each complete block (-1 after them), a row of
// selected_blocks with the kept ones (-1 after them). It knows no bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "oracle/compare/tensor_difference.hpp"

namespace kalibri::oracle {

struct Selection {
  std::vector<bool> has_choice;  // [T] more blocks are complete than a query may keep
  std::vector<bool> differs;     // [T] the two sets differ
  std::vector<double> gap;       // [T] exchanged_gap() where they differ, else 0

  [[nodiscard]] std::int64_t n_differing() const;
};

/// How far the reference's own scores (of the complete blocks) set apart what the candidate exchanged: the best that it
/// misses minus the worst that it kept instead. Infinite when `theirs` is no selection of as many blocks: another
/// number, one twice, one that is not complete.
double exchanged_gap(std::span<const std::int64_t> ours, std::span<const std::int64_t> theirs,
                     std::span<const double> scores);

/// Nothing when one side has no selected_blocks. Without the reference's index_scores (a prompt shorter than a block
/// has none) no block counts as complete. Throws dump::Error when shapes differ.
std::optional<Selection> compare_selection(const dump::Reader& reference, const dump::Reader& candidate,
                                           const std::string& prompt, std::int64_t layer);

}  // namespace kalibri::oracle

#include "oracle/compare/selection.hpp"

#include <algorithm>
#include <limits>

namespace kalibri::oracle {

namespace {

/// A row without its padding, ascending.
std::vector<std::int64_t> kept_blocks(std::span<const std::int64_t> row) {
  std::vector<std::int64_t> blocks(row.begin(), row.end());
  std::erase(blocks, -1);
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

/// The reference's scores of each query's complete blocks.
class Scores {
 public:
  Scores(const dump::Reader& dump, const std::string& prompt, std::int64_t layer)
      : tensor_{dump, prompt, dump::layer_path(layer, "index_scores")} {
    if (const auto info = dump.find(prompt, tensor_.path)) n_columns_ = info->shape.at(1);
  }

  /// Valid until the next call. Queries must come in rising order.
  std::span<const double> of_query(std::int64_t query, std::int64_t n_queries) {
    if (n_columns_ == 0) return {};
    if (query >= first_ + n_rows_) {
      first_ = query;
      n_rows_ = std::min(rows_per_block(n_columns_), n_queries - query);
      block_ = tensor_.dump.read_f64(tensor_.prompt, tensor_.path, first_, n_rows_);
    }
    const auto row = std::span(block_).subspan(static_cast<std::size_t>((query - first_) * n_columns_),
                                               static_cast<std::size_t>(n_columns_));
    return row.first(static_cast<std::size_t>(std::find(row.begin(), row.end(), -1.0) - row.begin()));
  }

 private:
  TensorRef tensor_;
  std::int64_t n_columns_ = 0, first_ = 0, n_rows_ = 0;
  std::vector<double> block_;
};

}  // namespace

std::int64_t Selection::n_differing() const { return std::count(differs.begin(), differs.end(), true); }

double exchanged_gap(std::span<const std::int64_t> ours, std::span<const std::int64_t> theirs,
                     std::span<const double> scores) {
  constexpr double kNoSelection = std::numeric_limits<double>::infinity();
  const auto is_complete = [&scores](std::int64_t block) { return block >= 0 && block < std::ssize(scores); };
  const auto has = [](std::span<const std::int64_t> blocks, std::int64_t block) {
    return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
  };
  double best_missed = -kNoSelection;
  double worst_instead = kNoSelection;
  for (const std::int64_t block : ours) {
    if (!is_complete(block)) return kNoSelection;
    if (!has(theirs, block)) best_missed = std::max(best_missed, scores[static_cast<std::size_t>(block)]);
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (!is_complete(theirs[i]) || has(theirs.first(i), theirs[i])) return kNoSelection;
    if (!has(ours, theirs[i])) worst_instead = std::min(worst_instead, scores[static_cast<std::size_t>(theirs[i])]);
  }
  return ours.size() == theirs.size() ? best_missed - worst_instead : kNoSelection;
}

std::optional<Selection> compare_selection(const dump::Reader& reference, const dump::Reader& candidate,
                                           const std::string& prompt, std::int64_t layer) {
  const TensorRef ours{reference, prompt, dump::layer_path(layer, "selected_blocks")};
  const TensorRef theirs{candidate, prompt, ours.path};
  if (!reference.find(prompt, ours.path) || !candidate.find(prompt, ours.path)) return std::nullopt;
  const std::vector<std::int64_t> shape = common_shape(ours, theirs);
  const std::int64_t n_queries = shape.at(0);
  const std::vector<std::int64_t> our_ids = reference.read_i64(prompt, ours.path, 0, n_queries);
  const std::vector<std::int64_t> their_ids = candidate.read_i64(prompt, ours.path, 0, n_queries);
  const auto n_kept = static_cast<std::size_t>(shape.at(1));
  Scores scores(reference, prompt, layer);
  Selection selection;
  for (std::int64_t query = 0; query < n_queries; ++query) {
    const std::size_t begin = static_cast<std::size_t>(query) * n_kept;
    const std::vector<std::int64_t> our_blocks = kept_blocks(std::span(our_ids).subspan(begin, n_kept));
    const std::vector<std::int64_t> their_blocks = kept_blocks(std::span(their_ids).subspan(begin, n_kept));
    const std::span<const double> complete = scores.of_query(query, n_queries);
    const bool differs = our_blocks != their_blocks;
    selection.has_choice.push_back(complete.size() > n_kept);
    selection.differs.push_back(differs);
    selection.gap.push_back(differs ? exchanged_gap(our_blocks, their_blocks, complete) : 0);
  }
  return selection;
}

}  // namespace kalibri::oracle

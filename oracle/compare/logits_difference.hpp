// The difference of logits between two dumps, position by position, over the positions that both have; read in blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oracle/compare/tensor_difference.hpp"
#include "oracle/metrics/logits.hpp"

namespace kalibri::oracle {

/// A dataset of logits and the absolute position of each of its rows, ascending.
struct LogitsRef {
  TensorRef tensor;  // [P, V]
  std::vector<std::int64_t> positions;
};

/// `logits` of a prompt with its positions, and decode/<schedule>/logits with theirs.
LogitsRef prefill_logits(const dump::Reader& dump, const dump::PromptInfo& prompt);
LogitsRef decode_logits(const dump::Reader& dump, const dump::PromptInfo& prompt, const dump::Schedule& schedule);

/// What one common position adds beyond its metrics.
struct LogitsRow {
  LogitRowDifference difference;
  double rel = 0;            // ||Q - R|| / ||R||; NaN when not finite
  double squared_error = 0;  // sum (Q - R)^2; NaN when not finite
  bool bits_differ = false;
  /// How far the reference itself sets apart what the candidate exchanged among the first token (the first five): its
  /// largest logit that the candidate misses there minus the smallest that the candidate has instead; 0 when none is.
  double top1_gap = 0, top5_gap = 0;
};

struct LogitsDifference {
  std::vector<LogitsRow> rows;  // at least one
  LogitMetrics metrics;         // over all rows
  std::int64_t n_vocab = 0;
  double reference_std = 0, reference_max = 0, reference_max_abs = 0;  // over all reference logits compared
  FormatCount format;                                                  // over all logits compared
};

/// Nothing when a dataset is absent or no position is common. Throws dump::Error when the vocabularies differ.
std::optional<LogitsDifference> compare_logit_rows(const LogitsRef& reference, const LogitsRef& candidate);

/// Metrics over the rows whose position lies in [first, end).
LogitMetrics summarise_positions(const LogitsDifference& logits, std::int64_t first, std::int64_t end);

/// The n likeliest tokens at `position` with their probabilities, likeliest first; empty when the row is absent or not
/// finite.
std::vector<std::pair<std::int64_t, double>> likeliest(const LogitsRef& logits, std::int64_t position, std::size_t n);

}  // namespace kalibri::oracle

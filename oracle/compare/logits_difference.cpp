#include "oracle/compare/logits_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace kalibri::oracle {

namespace {

using Row = std::span<const double>;

/// Consecutive rows on both sides.
struct Run {
  std::int64_t reference_row = 0, candidate_row = 0, n = 0, first_position = 0;
};

/// The common positions as runs of at most `longest` rows.
std::vector<Run> common_runs(const std::vector<std::int64_t>& ours, const std::vector<std::int64_t>& theirs,
                             std::int64_t longest) {
  std::vector<Run> runs;
  for (std::size_t i = 0, j = 0; i < ours.size() && j < theirs.size();) {
    if (ours[i] != theirs[j]) {
      ours[i] < theirs[j] ? ++i : ++j;
      continue;
    }
    const bool goes_on = !runs.empty() && runs.back().n < longest &&
                         runs.back().first_position + runs.back().n == ours[i] &&
                         runs.back().reference_row + runs.back().n == static_cast<std::int64_t>(i) &&
                         runs.back().candidate_row + runs.back().n == static_cast<std::int64_t>(j);
    if (goes_on) {
      ++runs.back().n;
    } else {
      runs.push_back({static_cast<std::int64_t>(i), static_cast<std::int64_t>(j), 1, ours[i]});
    }
    ++i, ++j;
  }
  return runs;
}

/// See LogitsRow::top1_gap, for the first k.
double exchanged_gap(Row reference, Row candidate, std::size_t k) {
  const std::vector<std::int64_t> ours = top_k(reference, k);
  const std::vector<std::int64_t> theirs = top_k(candidate, k);
  const auto lacks = [](const std::vector<std::int64_t>& ids, std::int64_t id) {
    return std::find(ids.begin(), ids.end(), id) == ids.end();
  };
  double largest_missed = -std::numeric_limits<double>::infinity();
  double smallest_instead = std::numeric_limits<double>::infinity();
  for (const std::int64_t id : ours) {
    if (lacks(theirs, id)) largest_missed = std::max(largest_missed, reference[static_cast<std::size_t>(id)]);
  }
  for (const std::int64_t id : theirs) {
    if (lacks(ours, id)) smallest_instead = std::min(smallest_instead, reference[static_cast<std::size_t>(id)]);
  }
  return std::isfinite(largest_missed) ? largest_missed - smallest_instead : 0;
}

LogitsRow compare_position(Row reference, Row candidate, std::int64_t position) {
  LogitsRow row;
  row.difference = compare_logit_row(reference, candidate, position);
  row.bits_differ = std::memcmp(reference.data(), candidate.data(), reference.size_bytes()) != 0;
  if (row.difference.not_finite) {
    row.rel = row.squared_error = row.top1_gap = row.top5_gap = std::numeric_limits<double>::quiet_NaN();
    return row;
  }
  const RowDifference elements = compare_row(reference, candidate, position);
  row.rel = elements.rel().value_or(0);
  row.squared_error = elements.squared_error;
  if (!row.difference.top1_same) row.top1_gap = exchanged_gap(reference, candidate, 1);
  if (row.difference.top5_share != 1)
    row.top5_gap = exchanged_gap(reference, candidate, std::min<std::size_t>(5, reference.size()));
  return row;
}

/// Mean and standard deviation in one pass (Welford).
struct Spread {
  double n = 0, mean = 0, squares = 0;
  void add(double x) {
    n += 1;
    const double step = x - mean;
    mean += step / n;
    squares += step * (x - mean);
  }
};

}  // namespace

LogitsRef prefill_logits(const dump::Reader& dump, const dump::PromptInfo& prompt) {
  return {{dump, prompt.name, "logits"}, prompt.positions};
}

LogitsRef decode_logits(const dump::Reader& dump, const dump::PromptInfo& prompt, const dump::Schedule& schedule) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(schedule.n_rows));
  std::iota(positions.begin(), positions.end(), schedule.first_position);
  return {{dump, prompt.name, "decode/" + schedule.name + "/logits"}, std::move(positions)};
}

std::optional<LogitsDifference> compare_logit_rows(const LogitsRef& reference, const LogitsRef& candidate) {
  const auto [our_dump, our_prompt, our_path] = reference.tensor;
  const auto [their_dump, their_prompt, their_path] = candidate.tensor;
  const auto ours = our_dump.find(our_prompt, our_path);
  const auto theirs = their_dump.find(their_prompt, their_path);
  if (!ours || !theirs) return std::nullopt;
  LogitsDifference logits;
  logits.n_vocab = ours->shape.at(1);
  if (theirs->shape.at(1) != logits.n_vocab) {
    throw dump::Error(fmt::format("{}: {}/{}: {} columns, expected {} as {} has it: not the same vocabulary; refused",
                                  their_dump.path().string(), their_prompt, their_path, theirs->shape.at(1),
                                  logits.n_vocab, our_dump.path().string()));
  }
  const auto width = static_cast<std::size_t>(logits.n_vocab);
  Spread spread;
  logits.reference_max = -std::numeric_limits<double>::infinity();
  for (const Run& run : common_runs(reference.positions, candidate.positions, rows_per_block(logits.n_vocab))) {
    const std::vector<double> h = our_dump.read_f64(our_prompt, our_path, run.reference_row, run.n);
    const std::vector<double> o = their_dump.read_f64(their_prompt, their_path, run.candidate_row, run.n);
    for (std::int64_t i = 0; i < run.n; ++i) {
      const std::size_t begin = static_cast<std::size_t>(i) * width;
      logits.rows.push_back(
          compare_position(Row(h).subspan(begin, width), Row(o).subspan(begin, width), run.first_position + i));
    }
    logits.format.add(h, o);
    for (const double x : h) {
      spread.add(x);
      logits.reference_max = std::max(logits.reference_max, x);
      logits.reference_max_abs = std::max(logits.reference_max_abs, std::abs(x));
    }
  }
  if (logits.rows.empty()) return std::nullopt;
  logits.reference_std = std::sqrt(spread.squares / spread.n);
  logits.metrics = summarise_positions(logits, 0, std::numeric_limits<std::int64_t>::max());
  return logits;
}

LogitMetrics summarise_positions(const LogitsDifference& logits, std::int64_t first, std::int64_t end) {
  std::vector<LogitRowDifference> chosen;
  for (const LogitsRow& row : logits.rows) {
    if (row.difference.position >= first && row.difference.position < end) chosen.push_back(row.difference);
  }
  return summarise(chosen);
}

std::vector<std::pair<std::int64_t, double>> likeliest(const LogitsRef& logits, std::int64_t position, std::size_t n) {
  const auto at = std::lower_bound(logits.positions.begin(), logits.positions.end(), position);
  if (at == logits.positions.end() || *at != position) return {};
  const TensorRef& tensor = logits.tensor;
  const std::vector<double> row = tensor.dump.read_f64(tensor.prompt, tensor.path, at - logits.positions.begin(), 1);
  if (!std::all_of(row.begin(), row.end(), [](double x) { return std::isfinite(x); })) return {};
  const std::vector<double> ln_p = log_softmax(row);
  std::vector<std::pair<std::int64_t, double>> result;
  for (const std::int64_t id : top_k(row, std::min(n, row.size())))
    result.emplace_back(id, std::exp(ln_p[static_cast<std::size_t>(id)]));
  return result;
}

}  // namespace kalibri::oracle

#include "reference/tests/difference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace kalibri::reference::test {
namespace {

/// ln of the softmax's denominator, with the maximum taken out: ln sum_v exp(x_v).
double log_sum_exp(std::span<const double> x) {
  const double max = *std::ranges::max_element(x);
  double sum = 0;
  for (const double value : x) sum += std::exp(value - max);
  return max + std::log(sum);
}

std::size_t check_rows(std::span<const double> truth, std::span<const double> candidate, std::int64_t width) {
  const auto n = static_cast<std::size_t>(width);
  if (truth.empty() || truth.size() != candidate.size() || truth.size() % n != 0)
    throw std::invalid_argument("shapes differ");
  return truth.size() / n;
}

}  // namespace

Difference difference(std::span<const double> truth, std::span<const double> candidate, std::int64_t width) {
  const std::size_t n_rows = check_rows(truth, candidate, width);
  const auto n_cols = static_cast<std::size_t>(width);
  Difference result;
  double max_truth = 0;
  double all_squares = 0;
  double all_error_squares = 0;
  for (std::size_t row = 0; row < n_rows; ++row) {
    double squares = 0;
    double error_squares = 0;
    for (std::size_t i = row * n_cols; i < (row + 1) * n_cols; ++i) {
      const double error = candidate[i] - truth[i];
      squares += truth[i] * truth[i];
      error_squares += error * error;
      max_truth = std::max(max_truth, std::abs(truth[i]));
      result.max_abs = std::max(result.max_abs, std::abs(error));
    }
    result.rel_token_max = std::max(result.rel_token_max, std::sqrt(error_squares / squares));
    all_squares += squares;
    all_error_squares += error_squares;
  }
  result.rel = std::sqrt(all_error_squares / all_squares);
  result.rel_to_max = result.max_abs / max_truth;
  if (!std::isfinite(all_error_squares)) {  // std::max above passes over NaN
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    result = {kNan, kNan, kNan, kNan};
  }
  return result;
}

double kl_mean(std::span<const double> truth, std::span<const double> candidate, std::int64_t width) {
  const std::size_t n_rows = check_rows(truth, candidate, width);
  const auto n_cols = static_cast<std::size_t>(width);
  double sum = 0;
  for (std::size_t row = 0; row < n_rows; ++row) {
    const auto r = truth.subspan(row * n_cols, n_cols);
    const auto q = candidate.subspan(row * n_cols, n_cols);
    const double r_log_sum = log_sum_exp(r);
    const double q_log_sum = log_sum_exp(q);
    for (std::size_t v = 0; v < n_cols; ++v) {
      const double ln_p = r[v] - r_log_sum;
      sum += std::exp(ln_p) * (ln_p - (q[v] - q_log_sum));
    }
  }
  return sum / static_cast<double>(n_rows);
}

std::int64_t argmax(std::span<const double> row) { return std::ranges::max_element(row) - row.begin(); }

}  // namespace kalibri::reference::test

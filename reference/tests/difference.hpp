// How far two tensors are apart, relative to the tensor and to the worst token. A tests' own: the oracle is not seen
// here.
#pragma once

#include <cstdint>
#include <span>

namespace kalibri::reference::test {

struct Difference {
  double max_abs = 0;
  double rel = 0;            // Frobenius norms
  double rel_token_max = 0;  // the largest of the rows'
  double rel_to_max = 0;     // max_abs / max |truth|
};

/// Rows of `width` elements. Not a number anywhere makes every figure NaN.
Difference difference(std::span<const double> truth, std::span<const double> candidate, std::int64_t width);

/// Mean over rows of KL(softmax(truth) || softmax(candidate)), nats.
double kl_mean(std::span<const double> truth, std::span<const double> candidate, std::int64_t width);

/// First maximum of a row.
std::int64_t argmax(std::span<const double> row);

}  // namespace kalibri::reference::test

// Which experts each token went to on the two sides, and whether a difference can be a tie. Expert ids come by falling
// selection score, so the last one is the k-th: the only one that a tie at the cut can exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "oracle/compare/tensor_difference.hpp"

namespace kalibri::oracle {

struct Routing {
  std::vector<bool> differs;         // [T] the two sets differ
  std::vector<bool> is_single_swap;  // [T] they differ in one expert, the reference's k-th
  std::vector<double> gap;           // [T] the reference's k-th minus (k+1)-th selection score; empty when not dumped
  std::optional<TensorDifference>
      weights;  // paired by expert id; a row whose sets differ counts as equal (`differs` says it)

  std::optional<double> same_frac;  // share of tokens whose sets are equal

  [[nodiscard]] std::int64_t n_differing() const;
};

/// Nothing when one side has no expert_ids. Throws dump::Error when shapes differ.
std::optional<Routing> compare_routing(const dump::Reader& reference, const dump::Reader& candidate,
                                       const std::string& prompt, std::int64_t layer);

}  // namespace kalibri::oracle

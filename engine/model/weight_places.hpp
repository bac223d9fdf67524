// Where a model's matrices lie: in the pages of the mapped files, or in memory of their own; and whether all of them
// fit there. Bits do not depend on it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/held_pages.hpp"
#include "engine/checkpoint/family.hpp"
#include "engine/runtime/expert_cache.hpp"
#include "engine/runtime/weight_forms.hpp"
#include "engine/runtime/weight_place.hpp"

namespace kalibri::model {

/// A matrix of a family's list that is no expert's, in place, from its header. Throws Error(tensor).
kernels::MatrixView find_matrix(const checkpoint::Checkpoint& checkpoint, const checkpoint::ExpectedTensor& tensor);

/// Lets go of the memory under a stored matrix, which lies in a mapped file.
void forget_matrix(const kernels::MatrixView& stored);

/// The weights of every token in their places. Of the family's list that is all but routed experts, n-gram tables, and
/// the embedding (unless it is the head as well).
class PlacedWeights {
 public:
  PlacedWeights() = default;
  /// Before any of them is read: those that are used as stored are read into memory of their own, once, when `memory`
  /// is asked for or, of a large model, `automatic` and a measurement finds that it is read faster and the system gives
  /// that much. The checkpoint must outlive this. `forms` knows the classes of all. Throws Error(tensor | file |
  /// usage).
  PlacedWeights(const checkpoint::Checkpoint& checkpoint, const std::vector<checkpoint::ExpectedTensor>& tensors,
                const runtime::WeightForms& forms, const runtime::WeightPlaceOptions& options);

  /// Lets go of what checking left in memory of the matrices whose names begin with `prefix` and which are used in
  /// another form.
  void forget_checked(const std::string& prefix) const;

  /// is_memory, read_bytes, gain and refusal.
  [[nodiscard]] const runtime::WeightPlaceInfo& info() const { return info_; }

 private:
  runtime::WeightPlaceInfo info_;
  std::vector<HeldPages> held_;
  std::vector<std::pair<std::string, kernels::MatrixView>> formed_;
};

/// Bytes that a run keeps: weights, the experts that its cache or its memory has room for, state and buffers of a
/// session of FootprintOptions::kDefaultContext tokens; a tenth and 64 MiB more, so that the machine keeps breathing.
/// Throws as `footprint`.
std::int64_t needed_bytes(const checkpoint::Checkpoint& checkpoint, const runtime::Precision& precision,
                          const runtime::ExpertCacheOptions& cache, int n_threads);

}  // namespace kalibri::model

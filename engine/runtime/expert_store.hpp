// Where the routed experts' weights come from. The model says which experts of a layer it is about to multiply with,
// and takes them one by one; whether they lie in a mapped file, in memory, or have to be read first is the store's
// affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/kernels/matrix_view.hpp"
#include "engine/runtime/expert_cache.hpp"

namespace kalibri::runtime {

/// One routed expert: down(silu(gate x) * (up x)); gate and up [I, H], down [H, I].
struct ExpertWeights {
  kernels::MatrixView gate;
  kernels::MatrixView up;
  kernels::MatrixView down;
};

/// Some experts of one layer, from when they are known until they have been used. Its end lets go of all of them.
class ExpertVisit {
 public:
  struct Taken {
    std::size_t index = 0;  // into the experts of the visit
    ExpertWeights weights;
  };
  virtual ~ExpertVisit() = default;
  /// One that nobody took yet, whichever is there first; waits for it. To be called as often as there are experts, by
  /// any threads. Its weights are valid until give_back(index). Throws Error(tensor | file) when they cannot be used.
  virtual Taken take() = 0;
  virtual void give_back(std::size_t index) = 0;
};

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  /// Announces the experts (distinct) that the layer needs next: what is missing begins to be read now, in this order.
  virtual std::unique_ptr<ExpertVisit> visit(std::int64_t layer, std::vector<std::int32_t> experts) = 0;
  /// The caller goes layer by layer and will not come back to this one soon: what is held for it may go. No visit of
  /// the layer is open.
  virtual void leave_layer(std::int64_t layer) = 0;
  /// Of a store that reads experts from disk.
  [[nodiscard]] virtual std::optional<ExpertCacheInfo> cache() const { return {}; }
  [[nodiscard]] virtual ExpertStatistics statistics() const { return {}; }
};

/// An expert that was taken, given back at the end of the scope.
class TakenExpert {
 public:
  explicit TakenExpert(ExpertVisit& visit) : visit_(visit), taken_(visit.take()) {}
  ~TakenExpert() { visit_.give_back(taken_.index); }
  TakenExpert(const TakenExpert&) = delete;
  TakenExpert& operator=(const TakenExpert&) = delete;
  [[nodiscard]] std::size_t index() const { return taken_.index; }
  [[nodiscard]] const ExpertWeights& weights() const { return taken_.weights; }

 private:
  ExpertVisit& visit_;
  ExpertVisit::Taken taken_;
};

}  // namespace kalibri::runtime

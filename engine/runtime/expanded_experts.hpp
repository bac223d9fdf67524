// Routed experts in another form than stored (expanded, rounded, quantised), as many as a limit of bytes allows: a
// layer of hundreds of large experts is never made whole. It knows no tensor names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/anonymous_memory.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/expert_usage.hpp"
#include "engine/runtime/precision.hpp"

namespace kalibri::runtime {

class ExpandedExperts {
 public:
  /// Experts in use are held whatever max_bytes says; beyond it the one that has been idle longest goes first.
  explicit ExpandedExperts(std::int64_t max_bytes, const WeightForm& form = {WeightForm::Kind::f32})
      : usage_(max_bytes), form_(form) {}

  /// `stored` with each matrix in its form. Valid until release(layer, expert). Several threads may call it at once.
  ExpertWeights acquire(std::int64_t layer, std::int64_t expert, const ExpertWeights& stored);
  void release(std::int64_t layer, std::int64_t expert);
  /// Frees the layer's experts. Nobody may be using them.
  void leave_layer(std::int64_t layer);

  /// Bytes held now.
  [[nodiscard]] std::int64_t n_bytes() const;

 private:
  struct Entry {
    std::once_flag made;
    AnonymousMemory bytes;
  };
  void erase(const std::vector<ExpertUsage::Key>& gone);

  mutable std::mutex mutex_;
  std::map<ExpertUsage::Key, std::unique_ptr<Entry>> entries_;
  ExpertUsage usage_;
  WeightForm form_;
};

}  // namespace kalibri::runtime

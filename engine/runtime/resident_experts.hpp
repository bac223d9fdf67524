// The expert store for checkpoints that are mapped whole: an expert is where its tensors lie. Each expert's FP8 codes
// are checked once, before its first use, so that loading reads none of them. What was read of the file is let go again
// where it will not be needed soon: with the layer, of experts that take another form at once, and beyond a limit of
// bytes of those that have been idle longest (the system still has their pages while it has memory to spare).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/runtime/expanded_experts.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/expert_usage.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::runtime {

class ResidentExperts final : public ExpertStore {
 public:
  /// Other forms that are kept for their next use; in f32 the released model's experts take 19 MiB each.
  static constexpr std::int64_t kMaxExpandedBytes = std::int64_t{1} << 30;
  /// The same for experts that are multiplied with where they lie in the file.
  static constexpr std::int64_t kMaxMappedBytes = std::int64_t{4} << 30;

  /// stored [n_layers][n_experts]; check(layer, expert) throws Error(tensor) when the expert's codes cannot be used;
  /// forget(expert) lets go of the memory under an expert's stored matrices, which stay readable.
  ResidentExperts(std::vector<std::vector<ExpertWeights>> stored, const WeightForms& forms,
                  std::function<void(std::int64_t layer, std::int64_t expert)> check,
                  std::function<void(const ExpertWeights&)> forget, std::int64_t max_mapped_bytes = kMaxMappedBytes);

  /// Weights of one expert, valid until release(layer, expert). May be called by several threads at once. Throws
  /// Error(tensor) when they cannot be used.
  ExpertWeights acquire(std::int64_t layer, std::int64_t expert);
  void release(std::int64_t layer, std::int64_t expert);

  std::unique_ptr<ExpertVisit> visit(std::int64_t layer, std::vector<std::int32_t> experts) override;
  void leave_layer(std::int64_t layer) override;

 private:
  void forget_all(const std::vector<ExpertUsage::Key>& experts) const;

  std::vector<std::vector<ExpertWeights>> stored_;
  bool makes_;  // a form of its own for each expert
  ExpandedExperts expanded_;
  std::mutex mapped_mutex_;
  ExpertUsage mapped_;
  std::function<void(std::int64_t, std::int64_t)> check_;
  std::function<void(const ExpertWeights&)> forget_;
  std::vector<std::vector<std::unique_ptr<std::once_flag>>> checked_;
};

}  // namespace kalibri::runtime

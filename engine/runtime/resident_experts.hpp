// The expert store for checkpoints that are mapped whole: an expert is where its tensors lie. Each expert's FP8 codes
// are checked once, before its first use, so that loading reads none of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::runtime {

class ResidentExperts final : public ExpertStore {
 public:
  /// stored [n_layers][n_experts]; check(layer, expert) throws Error(tensor) when the expert's codes cannot be used.
  ResidentExperts(std::vector<std::vector<ExpertWeights>> stored, WeightForms& forms,
                  std::function<void(std::int64_t layer, std::int64_t expert)> check);

  ExpertWeights acquire(std::int64_t layer, std::int64_t expert) override;
  void release(std::int64_t, std::int64_t) override {}
  void leave_layer(std::int64_t layer) override { forms_.leave_layer(layer); }

 private:
  std::vector<std::vector<ExpertWeights>> stored_;
  WeightForms& forms_;
  std::function<void(std::int64_t, std::int64_t)> check_;
  std::vector<std::vector<std::unique_ptr<std::once_flag>>> checked_;
};

}  // namespace kalibri::runtime

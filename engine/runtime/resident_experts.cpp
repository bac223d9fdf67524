#include "engine/runtime/resident_experts.hpp"

#include <atomic>
#include <utility>

namespace kalibri::runtime {

namespace {

/// Scales are small beside it.
std::int64_t n_bytes(const ExpertWeights& stored) {
  return kernels::stored_bytes(stored.gate) + kernels::stored_bytes(stored.up) + kernels::stored_bytes(stored.down);
}

/// All experts are there: they are handed out in their order.
class ResidentVisit final : public ExpertVisit {
 public:
  ResidentVisit(ResidentExperts& store, std::int64_t layer, std::vector<std::int32_t> experts)
      : store_(store), layer_(layer), experts_(std::move(experts)) {}
  Taken take() override {
    const std::size_t index = next_.fetch_add(1);
    return {index, store_.acquire(layer_, experts_[index])};
  }
  void give_back(std::size_t index) override { store_.release(layer_, experts_[index]); }

 private:
  ResidentExperts& store_;
  std::int64_t layer_;
  std::vector<std::int32_t> experts_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace

ResidentExperts::ResidentExperts(std::vector<std::vector<ExpertWeights>> stored, const WeightForms& forms,
                                 std::function<void(std::int64_t layer, std::int64_t expert)> check,
                                 std::function<void(const ExpertWeights&)> forget, std::int64_t max_mapped_bytes)
    : stored_(std::move(stored)),
      makes_(forms.precision().experts.kind != WeightForm::Kind::native),
      expanded_(kMaxExpandedBytes, forms.precision().experts),
      mapped_(max_mapped_bytes),
      check_(std::move(check)),
      forget_(std::move(forget)) {
  for (const auto& layer : stored_) {
    checked_.emplace_back();
    for (std::size_t expert = 0; expert < layer.size(); ++expert) {
      checked_.back().push_back(std::make_unique<std::once_flag>());
    }
  }
}

ExpertWeights ResidentExperts::acquire(std::int64_t layer, std::int64_t expert) {
  const auto l = static_cast<std::size_t>(layer);
  const auto e = static_cast<std::size_t>(expert);
  std::call_once(*checked_[l][e], check_, layer, expert);
  const ExpertWeights& stored = stored_[l][e];
  if (!makes_) {
    const std::lock_guard lock(mapped_mutex_);
    forget_all(mapped_.acquire({layer, expert}, n_bytes(stored)));
    return stored;
  }
  const ExpertWeights expanded = expanded_.acquire(layer, expert, stored);
  if (expanded.gate.data != stored.gate.data) forget_(stored);
  return expanded;
}

void ResidentExperts::release(std::int64_t layer, std::int64_t expert) {
  if (makes_) {
    expanded_.release(layer, expert);
  } else {
    const std::lock_guard lock(mapped_mutex_);
    forget_all(mapped_.release({layer, expert}));
  }
}

std::unique_ptr<ExpertVisit> ResidentExperts::visit(std::int64_t layer, std::vector<std::int32_t> experts) {
  return std::make_unique<ResidentVisit>(*this, layer, std::move(experts));
}

void ResidentExperts::leave_layer(std::int64_t layer) {
  expanded_.leave_layer(layer);
  {
    const std::lock_guard lock(mapped_mutex_);
    mapped_.leave_layer(layer);
  }
  for (const ExpertWeights& expert : stored_[static_cast<std::size_t>(layer)]) forget_(expert);
}

void ResidentExperts::forget_all(const std::vector<ExpertUsage::Key>& experts) const {
  for (const auto& [layer, expert] : experts) {
    forget_(stored_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)]);
  }
}

}  // namespace kalibri::runtime

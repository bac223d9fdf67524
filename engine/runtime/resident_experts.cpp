#include "engine/runtime/resident_experts.hpp"

#include <utility>

namespace kalibri::runtime {

ResidentExperts::ResidentExperts(std::vector<std::vector<ExpertWeights>> stored, WeightForms& forms,
                                 std::function<void(std::int64_t layer, std::int64_t expert)> check)
    : stored_(std::move(stored)), forms_(forms), check_(std::move(check)) {
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
  return {forms_.use(layer, stored.gate), forms_.use(layer, stored.up), forms_.use(layer, stored.down)};
}

}  // namespace kalibri::runtime

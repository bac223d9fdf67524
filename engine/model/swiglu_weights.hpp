// What both families do alike when they find their weights: the three matrices of a SwiGLU block, classes of formats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/family.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::model {

/// PREFIXgate_proj.weight and PREFIXup_proj.weight [width, hidden_size], PREFIXdown_proj.weight [hidden_size, width],
/// in place; check_values as in Checkpoint::matrix, and FP8's block scales, which are few, are looked at without it
/// too. Throws Error(tensor).
runtime::ExpertWeights find_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t width, bool check_values);

/// The same of expert `index` in the stacks PREFIXgate_proj.weight and so on, [n_experts, out, in].
runtime::ExpertWeights find_stacked_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                           std::int64_t n_experts, std::int64_t hidden_size, std::int64_t width,
                                           std::int64_t index, bool check_values);

/// Tells `forms` the class of each weight of the family's list.
void classify_weights(const checkpoint::Checkpoint& checkpoint, const std::vector<checkpoint::ExpectedTensor>& tensors,
                      runtime::WeightForms& forms);

/// The routed experts [n_layers][n_experts], which are mapped: as the cache's options want them; without a cache
/// where they are mapped, or in memory: that of a cache that has room for all and reads each when it is first wanted.
/// check(layer, expert) throws Error(tensor) for values that cannot be used. Throws Error(usage) for a cache of experts
/// that are not used as stored, unless it is optional.
std::unique_ptr<runtime::ExpertStore> make_expert_store(const checkpoint::Checkpoint& checkpoint,
                                                        std::vector<std::vector<runtime::ExpertWeights>> experts,
                                                        const runtime::WeightForms& forms,
                                                        std::function<void(std::int64_t, std::int64_t)> check,
                                                        const runtime::ExpertCacheOptions& cache, bool are_in_memory);

}  // namespace kalibri::model

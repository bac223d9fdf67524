// What both families do alike when they find their weights: the three matrices of a SwiGLU block, classes of formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/family.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::model {

/// PREFIXgate_proj.weight and PREFIXup_proj.weight [width, hidden_size], PREFIXdown_proj.weight [hidden_size, width],
/// in place; check_values as in Checkpoint::matrix. Throws Error(tensor).
runtime::ExpertWeights find_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t width, bool check_values);

/// The same of expert `index` in the stacks PREFIXgate_proj.weight and so on, [n_experts, out, in].
runtime::ExpertWeights find_stacked_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                           std::int64_t n_experts, std::int64_t hidden_size, std::int64_t width,
                                           std::int64_t index, bool check_values);

/// Tells `forms` the class of each weight of the family's list.
void classify_weights(const checkpoint::Checkpoint& checkpoint, const std::vector<checkpoint::ExpectedTensor>& tensors,
                      runtime::WeightForms& forms);

/// Lets go of the memory under the matrices, which lie in a mapped file.
void forget_swiglu(const runtime::ExpertWeights& expert);

}  // namespace kalibri::model

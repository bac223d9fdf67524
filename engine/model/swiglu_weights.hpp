// The three matrices of a SwiGLU block, as both families name them in a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/runtime/expert_store.hpp"

namespace kalibri::model {

/// PREFIXgate_proj.weight and PREFIXup_proj.weight [width, hidden_size], PREFIXdown_proj.weight [hidden_size, width],
/// in place; check_values as in Checkpoint::matrix. Throws Error(tensor).
runtime::ExpertWeights find_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t width, bool check_values);

/// Lets go of the memory under the matrices, which lie in a mapped file.
void forget_swiglu(const runtime::ExpertWeights& expert);

}  // namespace kalibri::model

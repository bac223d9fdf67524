// The feed-forward blocks that both families are made of: one SwiGLU, and a token's routed experts.
#pragma once

#include <cstdint>

#include "engine/model/buffers.hpp"
#include "engine/runtime/expert_store.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

/// Buffers of one layer's experts, kept between calls.
struct ExpertBuffers {
  Buffer gate;
  Buffer up;
  Buffer slots;  // [n * top_k, H]: each routed expert's output for each of its tokens
};

/// y [n, H] = down(silu(x gate^T) * (x up^T)); gate, up [I, H], down [H, I].
void swiglu(runtime::Workers& workers, const runtime::ExpertWeights& weights, const float* x, std::int64_t n, float* y,
            ExpertBuffers& buffers);

/// y [n, H] = for each token the sum over its top_k experts, by ascending expert id from +0, of
/// fma(weight, expert(x), sum): weighted after the down projection (arithmetic that rounds all: of each rounded
/// product; arithmetic that rounds: the sum is rounded once). ids, weights [n, top_k], ids of a token distinct. Expert
/// by expert: each is acquired once, by one thread, for all tokens that chose it.
void routed_experts(runtime::Workers& workers, runtime::ExpertStore& store, std::int64_t layer, const float* x,
                    std::int64_t n, std::int64_t hidden_size, std::int64_t top_k, const std::int32_t* ids,
                    const float* weights, float* y, ExpertBuffers& buffers);

}  // namespace kalibri::model

// The feed-forward blocks that both families are made of: one SwiGLU, and a token's routed experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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

/// One layer's routed experts for n tokens. The constructor tells the store which they are, so that what has to be read
/// is read while the caller computes something else.
class RoutedExperts {
 public:
  /// ids [n, top_k], those of a token distinct.
  RoutedExperts(runtime::ExpertStore& store, std::int64_t layer, std::int64_t n, std::int64_t top_k,
                const std::int32_t* ids);

  /// y [n, H] = for each token the sum over its top_k experts, by ascending expert id from +0, of
  /// fma(weight, expert(x), sum): weighted after the down projection (arithmetic that rounds all: of each rounded
  /// product; arithmetic that rounds: the sum is rounded once). weights [n, top_k] as ids. Expert by expert: each is
  /// taken once, by one thread, for all tokens that chose it, in whatever order they are there. To be called once.
  void run(runtime::Workers& workers, const float* x, std::int64_t hidden_size, const float* weights, float* y,
           ExpertBuffers& buffers);

 private:
  /// A token's place in its expert's batch, and the row of ExpertBuffers::slots that takes the result.
  struct Assignment {
    std::int64_t token = 0;
    std::int64_t slot = 0;
  };
  using Batch = std::vector<Assignment>;
  static void run_expert(runtime::Workers& workers, int worker, const runtime::ExpertWeights& expert,
                         const Batch& batch, const float* x, std::int64_t hidden_size, float* slots);

  std::int64_t n_;
  std::int64_t top_k_;
  std::vector<std::int64_t> order_;  // [n, top_k]: for each slot the index into ids and weights
  std::vector<Batch> batches_;       // all work of an expert, by ascending id
  std::unique_ptr<runtime::ExpertVisit> visit_;
};

}  // namespace kalibri::model

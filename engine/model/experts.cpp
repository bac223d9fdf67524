#include "engine/model/experts.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/aligned.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::model {

namespace {

using runtime::ExpertWeights;
using runtime::Workers;

#ifdef KALIBRI_MUTANTS
void gelu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {  // the tanh form: z * sigmoid(2 * 0.79788456 * (z + 0.044715 z^3))
    const float z = gate[i];
    y[i] = z * kernels::sigmoid_f32(1.5957691F * (z + 0.044715F * z * z * z)) * up[i];
  }
}
#endif

/// y = silu(gate) * up, where silu's output is rounded too if the arithmetic rounds. y may be gate.
void activate(const Workers& workers, const float* gate, const float* up, std::int64_t n, float* y) {
  const float* g = KALIBRI_MUTATE(gate, "swap_gate_up", up);
  const float* u = KALIBRI_MUTATE(up, "swap_gate_up", gate);
  if (workers.arithmetic().rounds()) {
    kernels::kernels().silu(g, n, y);
    workers.round(y, n);
    kernels::kernels().multiply(u, n, y);
    workers.round(y, n);
    return;
  }
  KALIBRI_MUTATE(kernels::kernels().silu_mul, "act_gelu", gelu_mul)(g, u, n, y);
}

}  // namespace

void swiglu(Workers& workers, const ExpertWeights& weights, const float* x, std::int64_t n, float* y,
            ExpertBuffers& buffers) {
  const std::int64_t width = weights.gate.n_rows;
  float* gate = buffers.gate.floats(n * width);
  float* up = buffers.up.floats(n * width);
  linear(workers, weights.gate, x, n, gate);
  linear(workers, weights.up, x, n, up);
  workers.rows(n, 1,
               [&](std::int64_t t) { activate(workers, gate + t * width, up + t * width, width, gate + t * width); });
  linear(workers, weights.down, gate, n, y);
}

RoutedExperts::RoutedExperts(runtime::ExpertStore& store, std::int64_t layer, std::int64_t n, std::int64_t top_k,
                             const std::int32_t* ids)
    : n_(n), top_k_(top_k), order_(static_cast<std::size_t>(n * top_k)) {
  std::map<std::int32_t, Batch> by_expert;
  for (std::int64_t t = 0; t < n; ++t) {  // slot t * top_k + r belongs to token t's r-th expert by ascending id
    const auto first = order_.begin() + t * top_k;
    for (std::int64_t i = 0; i < top_k; ++i) first[i] = t * top_k + i;
    std::sort(first, first + top_k, [&](std::int64_t a, std::int64_t b) { return ids[a] < ids[b]; });
    for (std::int64_t r = 0; r < top_k; ++r) by_expert[ids[first[r]]].push_back({t, t * top_k + r});
  }
  std::vector<std::int32_t> experts;
  for (auto& [expert, batch] : by_expert) {
    experts.push_back(expert);
    batches_.push_back(std::move(batch));
  }
  visit_ = store.visit(layer, std::move(experts));
}

void RoutedExperts::run_expert(Workers& workers, int worker, const ExpertWeights& expert, const Batch& batch,
                               const float* x, std::int64_t hidden_size, float* slots) {
  const auto n = static_cast<std::int64_t>(batch.size());
  const std::int64_t width = expert.gate.n_rows;
  AlignedFloats rows(static_cast<std::size_t>(n * hidden_size));
  AlignedFloats gate(static_cast<std::size_t>(n * width));
  AlignedFloats up(static_cast<std::size_t>(n * width));
  const auto row_bytes = static_cast<std::size_t>(hidden_size) * sizeof(float);
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(rows.data() + i * hidden_size, x + batch[static_cast<std::size_t>(i)].token * hidden_size, row_bytes);
  }
  linear_here(workers, worker, expert.gate, rows.data(), n, gate.data());
  linear_here(workers, worker, expert.up, rows.data(), n, up.data());
  activate(workers, gate.data(), up.data(), n * width, gate.data());
  linear_here(workers, worker, expert.down, gate.data(), n, rows.data());
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(slots + batch[static_cast<std::size_t>(i)].slot * hidden_size, rows.data() + i * hidden_size,
                row_bytes);
  }
}

void RoutedExperts::run(Workers& workers, const float* x, std::int64_t hidden_size, const float* weights, float* y,
                        ExpertBuffers& buffers) {
  float* slots = buffers.slots.floats(n_ * top_k_ * hidden_size);
  workers.each(static_cast<std::int64_t>(batches_.size()), [&](std::int64_t, int worker) {
    const runtime::TakenExpert taken(*visit_);
    run_expert(workers, worker, taken.weights(), batches_[taken.index()], x, hidden_size, slots);
  });
  workers.rows(n_, 8, [&](std::int64_t t) {
    float* sum = y + t * hidden_size;
    std::fill_n(sum, hidden_size, 0.0F);
    for (std::int64_t slot = t * top_k_; slot < (t + 1) * top_k_; ++slot) {
      const float weight = weights[order_[static_cast<std::size_t>(slot)]];
      float* output = slots + slot * hidden_size;
      if (workers.arithmetic().rounds_all()) {
        kernels::kernels().scale(weight, output, hidden_size, output);
        workers.round(output, hidden_size);
        kernels::kernels().add(output, hidden_size, sum);
      } else {
        kernels::kernels().axpy(weight, output, hidden_size, sum);
      }
    }
    workers.round(sum, hidden_size);
  });
}

}  // namespace kalibri::model

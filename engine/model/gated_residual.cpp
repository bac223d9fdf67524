#include "engine/model/gated_residual.hpp"

#include <algorithm>
#include <vector>

#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/model/residual.hpp"

namespace kalibri::model {

using kernels::kernels;

GatedResidual::GatedResidual(runtime::Workers& workers, const checkpoint::Qwen4ExpConfig& config)
    : workers_(workers),
      hidden_size_(config.hidden_size),
      n_streams_(config.hc_count),
      rank_(config.hc_lowrank),
      eps_(static_cast<float>(KALIBRI_MUTATE(config.rms_norm_eps, "norm_eps_1e-5", 1e-5))) {}

void GatedResidual::read_out(const float* norm, const kernels::MatrixView& down, const kernels::MatrixView& up,
                             const kernels::MatrixView& inject_matrix, const float* residual, std::int64_t n,
                             float* mixed, float* inject) {
  const std::int64_t h = hidden_size_;
  const std::int64_t width = n_streams_ * h;
  const float per_stream = 1.0F / static_cast<float>(n_streams_);
  float* normed = normed_.floats(n * width);
  float* low = low_.floats(n * rank_);
  float* gates = gates_.floats(n * width);

  const std::int64_t group = KALIBRI_MUTATE(h, "norm_over_all_streams", width);  // components that share a mean square
  workers_.rows(n, 1, [&](std::int64_t t) {
    for (std::int64_t i = t * width; i < (t + 1) * width; i += group) {
      kernels().rms_norm(residual + i, norm + (i - t * width), eps_, group, normed + i);
    }
    workers_.round(normed + t * width, width);
  });
  linear(workers_, down, normed, n, low);
  const float low_scale = KALIBRI_MUTATE(per_stream, "mix_not_divided", 1.0F);
  workers_.rows(n, 8, [&](std::int64_t t) {
    float* row = low + t * rank_;
    kernels().scale(low_scale, row, rank_, row);
    workers_.round(row, rank_);
    kernels().silu(row, rank_, row);
    workers_.round(row, rank_);
  });
  linear(workers_, up, low, n, gates);
  const float* read = KALIBRI_MUTATE(normed, "gates_on_raw_streams", residual);
  workers_.rows(n, 4, [&](std::int64_t t) {
    float* gate = gates + t * width;
    float* out = mixed + t * h;
    kernels().sigmoid(gate, width, gate);
    workers_.round(gate, width);
    std::fill_n(out, h, 0.0F);
    for (std::int64_t s = 0; s < n_streams_; ++s) {
      const float* stream = read + t * width + s * h;
      if (workers_.arithmetic().rounds()) {
        kernels().multiply(stream, h, gate + s * h);
        workers_.round(gate + s * h, h);
        kernels().add(gate + s * h, h, out);
      } else {
        kernels().multiply_add(gate + s * h, stream, h, out);
      }
    }
    kernels().scale(KALIBRI_MUTATE(per_stream, "mix_sum_for_mean", 1.0F), out, h, out);
    workers_.round(out, h);
  });
  if (inject != nullptr) {
    linear(workers_, inject_matrix, normed, n, inject);
    const float inject_scale = KALIBRI_MUTATE(per_stream, "inject_not_divided", 1.0F);
    kernels().scale(inject_scale, inject, n * n_streams_, inject);
    workers_.round(inject, n * n_streams_);
    kernels().sigmoid(inject, n * n_streams_, inject);
    workers_.round(inject, n * n_streams_);
    kernels().scale(KALIBRI_MUTATE(2.0F, "inject_without_two", 1.0F), inject, n * n_streams_, inject);
  }
}

void GatedResidual::add(float* residual, const float* block, const float* inject, std::int64_t n) {
  const std::int64_t width = n_streams_ * hidden_size_;
  workers_.rows(n, 4, [&](std::int64_t t) {
    if (KALIBRI_MUTATE(false, "inject_into_normed_streams", true)) {
      std::copy_n(normed_.floats(0) + t * width, width, residual + t * width);
    }
    std::vector<float> scratch(static_cast<std::size_t>(workers_.arithmetic().rounds() ? hidden_size_ : 0));
    add_to_residual(workers_, width, residual + t * width, [&](float* streams) {
      for (std::int64_t s = 0; s < n_streams_; ++s) {
        add_scaled(workers_, inject[t * n_streams_ + s], block + t * hidden_size_, hidden_size_, scratch.data(),
                   streams + s * hidden_size_);
      }
    });
  });
}

}  // namespace kalibri::model

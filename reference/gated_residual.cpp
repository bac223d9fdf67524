#include "reference/gated_residual.hpp"

namespace kalibri::reference {

GatedResidual find_gated_residual(const Qwen4ExpTensors& tensors, bool injects) {
  const Qwen4ExpConfig& c = tensors.config;
  const std::int64_t width = c.hc_count * c.hidden_size;
  GatedResidual gated;
  gated.hc_norm = tensors.vector("hc_norm.weight", width);
  gated.input_mix_weight_down = tensors.matrix("input_mix_weight_down.weight", c.hc_lowrank, width);
  gated.input_mix_weight_up = tensors.matrix("input_mix_weight_up.weight", width, c.hc_lowrank);
  if (injects) gated.block_inject_weight = tensors.matrix("block_inject_weight.weight", c.hc_count, width);
  gated.n_streams = c.hc_count;
  gated.eps = c.rms_norm_eps;
  return gated;
}

Mixed mix(const Rounding& r, const GatedResidual& gated, const at::Tensor& streams) {
  const auto n_streams = static_cast<double>(gated.n_streams);
  const at::Tensor n = norm_streams(r, streams, gated.hc_norm, gated.n_streams, gated.eps);  // [T, C, H]
  const at::Tensor flat = n.flatten(1);
  const at::Tensor l = r(at::silu(r(r.linear(gated.input_mix_weight_down)(flat)) / n_streams));
  const at::Tensor m = r(at::sigmoid(r(r.linear(gated.input_mix_weight_up)(l)))).view_as(n);
  Mixed mixed{r(r(m * n).mean(1)), {}};
  if (gated.block_inject_weight.weight != nullptr) {
    mixed.g = r(2.0 * at::sigmoid(r(r.linear(gated.block_inject_weight)(flat)) / n_streams));
  }
  return mixed;
}

at::Tensor inject(const Rounding& r, const at::Tensor& streams, const at::Tensor& g, const at::Tensor& out) {
  return r.add(streams, r(g.unsqueeze(2) * out.unsqueeze(1)).flatten(1));
}

at::Tensor norm_streams(const Rounding& r, const at::Tensor& x, const StoredMatrix& w, std::int64_t n_streams,
                        double eps) {
  const at::Tensor streams = x.view({x.size(0), n_streams, -1});
  return r(rms_norm(streams, 1.0 + r.load(w).view({n_streams, -1}), eps));
}

at::Tensor norm_plus_one(const Rounding& r, const at::Tensor& x, const StoredMatrix& w, double eps) {
  return r(rms_norm(x, 1.0 + r.load(w), eps));
}

}  // namespace kalibri::reference

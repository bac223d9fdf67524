// Gated DeltaNet: linear attention whose state forgets and corrects itself, token by token. Source: transformers,
// modeling_qwen4_exp.py, gated delta net; Yang et al., Gated Delta Networks (2024), whose letters the code keeps.
#pragma once

#include "reference/model.hpp"
#include "reference/qwen4_exp_tensors.hpp"
#include "reference/tensor.hpp"

namespace kalibri::reference {

struct DeltaNet {
  StoredMatrix in_proj_qkv;                       // [2 * Kd + Vd, H]
  StoredMatrix in_proj_z;                         // [Vd, H]
  StoredMatrix in_proj_b, in_proj_a;              // [value heads, H]
  StoredMatrix conv1d;                            // [2 * Kd + Vd, K]
  StoredMatrix dt_bias, a_log;                    // [value heads]
  StoredMatrix norm;                              // [dv]
  StoredMatrix out_proj;                          // [H, Vd]
  std::int64_t n_key_heads = 0, key_dim = 0;      // dk
  std::int64_t n_value_heads = 0, value_dim = 0;  // dv
  bool gate_is_sigmoid = false;                   // else SiLU
  double eps = 0;
};

DeltaNet find_delta_net(const Qwen4ExpTensors& tensors);

/// u [N, H] -> [N, H], one prompt after the other; records delta_core.
at::Tensor run_delta_net(const Rounding& r, const DeltaNet& net, const at::Tensor& u, std::span<const Prompt> prompts,
                         const Record& record);

/// The delta rule of every head from an empty state, token by token. q, k [T, heads, dk], v [T, heads, dv], alpha and
/// beta [T, heads] -> o [T, heads, dv]. Point 6.
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& alpha,
                      const at::Tensor& beta);

}  // namespace kalibri::reference

#include "reference/delta_net.hpp"

#include <ATen/Parallel.h>

#include <cmath>

namespace kalibri::reference {
namespace {

constexpr double kL2Eps = 1e-6;  // not the model's rms_norm_eps

at::Tensor l2_norm(const at::Tensor& x) { return x * at::rsqrt(x.square().sum(-1, /*keepdim=*/true) + kL2Eps); }

/// Where one head's rows of q, k, v and o begin and how far apart they are.
template <typename T>
struct HeadData {
  const T *q, *k, *v, *alpha, *beta;
  T* o;
  std::int64_t n_tokens, n_heads, key_dim, value_dim;
};

template <typename T>
void run_head(const HeadData<T>& head) {
  const std::int64_t dk = head.key_dim;
  const std::int64_t dv = head.value_dim;
  std::vector<T> state(static_cast<std::size_t>(dk * dv), T(0));
  std::vector<T> change(static_cast<std::size_t>(dv));
  T* const p = change.data();
  for (std::int64_t t = 0; t < head.n_tokens; ++t) {
    const T* q = head.q + t * head.n_heads * dk;
    const T* k = head.k + t * head.n_heads * dk;
    const T* v = head.v + t * head.n_heads * dv;
    T* o = head.o + t * head.n_heads * dv;
    const T alpha = head.alpha[t * head.n_heads];
    const T beta = head.beta[t * head.n_heads];
    std::fill(p, p + dv, T(0));
    for (std::int64_t i = 0; i < dk; ++i) {  // state *= alpha; p = k^T state
      T* row = state.data() + i * dv;
      for (std::int64_t j = 0; j < dv; ++j) {
        row[j] *= alpha;
        p[j] += k[i] * row[j];
      }
    }
    for (std::int64_t j = 0; j < dv; ++j) p[j] = beta * (v[j] - p[j]);
    std::fill(o, o + dv, T(0));
    for (std::int64_t i = 0; i < dk; ++i) {  // state += k (x) beta (v - p); o = q^T state
      T* row = state.data() + i * dv;
      for (std::int64_t j = 0; j < dv; ++j) {
        row[j] += k[i] * p[j];
        o[j] += q[i] * row[j];
      }
    }
  }
}

template <typename T>
void run_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& alpha,
               const at::Tensor& beta, const at::Tensor& o) {
  const std::int64_t n_heads = v.size(1);
  const std::int64_t dk = q.size(2);
  const std::int64_t dv = v.size(2);
  at::parallel_for(0, n_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      run_head<T>({q.data_ptr<T>() + h * dk, k.data_ptr<T>() + h * dk, v.data_ptr<T>() + h * dv,
                   alpha.data_ptr<T>() + h, beta.data_ptr<T>() + h, o.data_ptr<T>() + h * dv, v.size(0), n_heads, dk,
                   dv});
    }
  });
}

}  // namespace

DeltaNet find_delta_net(const Qwen4ExpTensors& tensors) {
  const Qwen4ExpConfig& c = tensors.config;
  const std::int64_t key_width = c.linear_num_key_heads * c.linear_key_head_dim;
  const std::int64_t value_width = c.linear_num_value_heads * c.linear_value_head_dim;
  DeltaNet net;
  net.in_proj_qkv = tensors.matrix("in_proj_qkv.weight", 2 * key_width + value_width, c.hidden_size);
  net.in_proj_z = tensors.matrix("in_proj_z.weight", value_width, c.hidden_size);
  net.in_proj_b = tensors.matrix("in_proj_b.weight", c.linear_num_value_heads, c.hidden_size);
  net.in_proj_a = tensors.matrix("in_proj_a.weight", c.linear_num_value_heads, c.hidden_size);
  net.conv1d = tensors.taps("conv1d.weight", 2 * key_width + value_width, c.linear_conv_kernel_dim);
  net.dt_bias = tensors.vector("dt_bias", c.linear_num_value_heads);
  net.a_log = tensors.vector("A_log", c.linear_num_value_heads);
  net.norm = tensors.vector("norm.weight", c.linear_value_head_dim);
  net.out_proj = tensors.matrix("out_proj.weight", c.hidden_size, value_width);
  net.n_key_heads = c.linear_num_key_heads;
  net.key_dim = c.linear_key_head_dim;
  net.n_value_heads = c.linear_num_value_heads;
  net.value_dim = c.linear_value_head_dim;
  net.gate_is_sigmoid = c.output_gate_is_sigmoid;
  net.eps = c.rms_norm_eps;
  return net;
}

at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& alpha,
                      const at::Tensor& beta) {
  at::Tensor o = at::empty(v.sizes(), v.options());
  const auto run = v.scalar_type() == at::kDouble ? run_heads<double> : run_heads<float>;
  run(q.contiguous(), k.contiguous(), v.contiguous(), alpha.contiguous(), beta.contiguous(), o);
  return o;
}

at::Tensor run_delta_net(const Rounding& r, const DeltaNet& net, const at::Tensor& u, std::span<const Prompt> prompts,
                         const Record& record) {
  const std::int64_t key_width = net.n_key_heads * net.key_dim;
  const std::int64_t value_width = net.n_value_heads * net.value_dim;
  const std::int64_t n_repeats = net.n_value_heads / net.n_key_heads;  // value heads that use one key head
  const at::Tensor qkv_before = r(r.linear(net.in_proj_qkv)(u));
  const at::Tensor beta = r(at::sigmoid(r(r.linear(net.in_proj_b)(u))));
  const at::Tensor a = r(r.linear(net.in_proj_a)(u)) + r.load(net.dt_bias);  // from here to alpha, nothing is rounded
  const at::Tensor softplus = at::logaddexp(a, at::zeros_like(a));
  const at::Tensor alpha = at::exp(-at::exp(r.load(net.a_log)) * softplus);
  const at::Tensor conv1d = r.load(net.conv1d);
  at::Tensor core = at::empty({u.size(0), net.n_value_heads, net.value_dim}, r.dtype());
  for (const Prompt& prompt : prompts) {
    const auto rows = [&](const at::Tensor& x) { return x.slice(0, prompt.first_row, prompt.end_row()); };
    const at::Tensor qkv = r(at::silu(causal_conv(rows(qkv_before), conv1d, 1)));
    const auto key_heads = [&](std::int64_t begin) {
      const at::Tensor heads = qkv.narrow(1, begin, key_width).reshape({-1, net.n_key_heads, net.key_dim});
      return r(l2_norm(heads)).repeat_interleave(n_repeats, 1);
    };
    const at::Tensor q = key_heads(0) / std::sqrt(static_cast<double>(net.key_dim));
    const at::Tensor k = key_heads(key_width);
    const at::Tensor v = qkv.narrow(1, 2 * key_width, value_width).reshape({-1, net.n_value_heads, net.value_dim});
    rows(core).copy_(r(delta_rule(q, k, v, rows(alpha), rows(beta))));
  }
  record("delta_core", 0, core);
  const at::Tensor z = r(r.linear(net.in_proj_z)(u)).view_as(core);
  const at::Tensor gate = net.gate_is_sigmoid ? at::sigmoid(z) : at::silu(z);
  const at::Tensor y = r(r(r(normalised(core, net.eps)) * r.load(net.norm)) * gate);  // a plain weight, not 1 + w
  return r(r.linear(net.out_proj)(y.flatten(1)));
}

}  // namespace kalibri::reference

#include "reference/training/functions.hpp"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

namespace kalibri::reference::training {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Calls `body` with a value of the tensors' element type.
template <typename Body>
void dispatch(const at::Tensor& like, Body body) {
  if (like.scalar_type() == at::kDouble) {
    body(double{});
  } else {
    body(float{});
  }
}

constexpr std::int64_t kChunks = 8;  // of rows, each with sums of its own: the same on any number of threads

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_any, const at::Tensor& g, double eps) {
    const at::Tensor x = x_any.contiguous();
    const std::int64_t n = x.size(-1);
    const std::int64_t n_rows = x.numel() / n;
    const std::int64_t n_groups = g.numel() / n;
    at::Tensor y = at::empty_like(x);
    at::Tensor r = at::empty({n_rows}, x.options());
    dispatch(x, [&](auto zero) {
      using T = decltype(zero);
      const T* const xs = x.data_ptr<T>();
      const T* const gs = g.data_ptr<T>();
      T* const ys = y.data_ptr<T>();
      T* const rs = r.data_ptr<T>();
      at::parallel_for(0, n_rows, 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* const v = xs + row * n;
          const T* const w = gs + row % n_groups * n;
          T sum[16] = {};  // running sums, for the sake of vector instructions
          std::int64_t j = 0;
          for (; j + 16 <= n; j += 16) {
            for (std::int64_t lane = 0; lane < 16; ++lane) sum[lane] += v[j + lane] * v[j + lane];
          }
          for (; j < n; ++j) sum[0] += v[j] * v[j];
          T total = 0;
          for (const T s : sum) total += s;
          const T scale = T(1) / std::sqrt(total / static_cast<T>(n) + static_cast<T>(eps));
          rs[row] = scale;
          for (j = 0; j < n; ++j) ys[row * n + j] = v[j] * scale * w[j];
        }
      });
    });
    context->save_for_backward({x, g, r});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& g = saved[1];
    const at::Tensor dy = grads[0].contiguous();
    const std::int64_t n = x.size(-1);
    const std::int64_t n_rows = x.numel() / n;
    const std::int64_t n_groups = g.numel() / n;
    at::Tensor dx = at::empty_like(x);
    at::Tensor dg = at::zeros({kChunks, g.numel()}, g.options());
    dispatch(x, [&](auto zero) {
      using T = decltype(zero);
      const T* const xs = x.data_ptr<T>();
      const T* const gs = g.data_ptr<T>();
      const T* const dys = dy.data_ptr<T>();
      const T* const rs = saved[2].data_ptr<T>();
      T* const dxs = dx.data_ptr<T>();
      T* const dgs = dg.data_ptr<T>();
      at::parallel_for(0, kChunks, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t chunk = first; chunk < last; ++chunk) {
          for (std::int64_t row = n_rows * chunk / kChunks; row < n_rows * (chunk + 1) / kChunks; ++row) {
            const T* const v = xs + row * n;
            const T* const d = dys + row * n;
            const T* const w = gs + row % n_groups * n;
            T* const dw = dgs + chunk * g.numel() + row % n_groups * n;
            T sum[16] = {};
            std::int64_t j = 0;
            for (; j + 16 <= n; j += 16) {
              for (std::int64_t lane = 0; lane < 16; ++lane) sum[lane] += d[j + lane] * w[j + lane] * v[j + lane];
            }
            for (; j < n; ++j) sum[0] += d[j] * w[j] * v[j];
            T total = 0;
            for (const T s : sum) total += s;
            const T r = rs[row];
            const T shrink = total * r * r * r / static_cast<T>(n);
            for (j = 0; j < n; ++j) dxs[row * n + j] = r * d[j] * w[j] - shrink * v[j];
            for (j = 0; j < n; ++j) dw[j] += d[j] * v[j] * r;
          }
        }
      });
    });
    return {dx, dg.sum(0).view_as(g), at::Tensor()};
  }
};

/// The places [0, N * k) of all choices, ordered by expert.
struct ByExpert {
  std::vector<std::int64_t> begin;  // [E + 1]: where each expert's places begin
  at::Tensor places;                // [N * k]
};

ByExpert sort_by_expert(const at::Tensor& ids, std::int64_t n_experts) {
  ByExpert sorted{std::vector<std::int64_t>(static_cast<std::size_t>(n_experts + 1), 0),
                  at::empty({ids.numel()}, at::kLong)};
  const std::int64_t* const chosen = ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) ++sorted.begin[static_cast<std::size_t>(chosen[i] + 1)];
  for (std::size_t e = 1; e < sorted.begin.size(); ++e) sorted.begin[e] += sorted.begin[e - 1];
  std::vector<std::int64_t> next = sorted.begin;
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    sorted.places.data_ptr<std::int64_t>()[next[static_cast<std::size_t>(chosen[i])]++] = i;
  }
  return sorted;
}

/// out rows of each expert e = x's rows of e times matrix(e): one large product an expert.
template <typename MatrixOf>
at::Tensor product_by_expert(const ByExpert& sorted, const at::Tensor& x, std::int64_t width, MatrixOf matrix) {
  at::Tensor out = at::empty({x.size(0), width}, x.options());
  for (std::size_t e = 0; e + 1 < sorted.begin.size(); ++e) {
    const std::int64_t n = sorted.begin[e + 1] - sorted.begin[e];
    if (n == 0) continue;
    at::Tensor rows = out.narrow(0, sorted.begin[e], n);
    at::mm_out(rows, x.narrow(0, sorted.begin[e], n), matrix(static_cast<std::int64_t>(e)));
  }
  return out;
}

/// [E, a, b]: for each expert its rows of x [M, a], transposed, times its rows of y [M, b].
at::Tensor outer_by_expert(const ByExpert& sorted, const at::Tensor& x, const at::Tensor& y) {
  const auto n_experts = static_cast<std::int64_t>(sorted.begin.size()) - 1;
  at::Tensor out = at::zeros({n_experts, x.size(1), y.size(1)}, x.options());
  for (std::int64_t e = 0; e < n_experts; ++e) {
    const std::int64_t begin = sorted.begin[static_cast<std::size_t>(e)];
    const std::int64_t n = sorted.begin[static_cast<std::size_t>(e + 1)] - begin;
    if (n == 0) continue;
    at::Tensor matrix = out[e];
    at::mm_out(matrix, x.narrow(0, begin, n).t(), y.narrow(0, begin, n));
  }
  return out;
}

/// sum[n] = sum over j of factor[n, j] * rows[inverse[n, j]]: what the experts gave, back at their tokens. Without
/// factors they are 1.
at::Tensor gather_sum(const at::Tensor& rows, const at::Tensor& places, std::int64_t k, const at::Tensor& factors) {
  const std::int64_t width = rows.size(1);
  const std::int64_t n_tokens = rows.size(0) / k;
  at::Tensor inverse = at::empty_like(places);
  for (std::int64_t i = 0; i < places.numel(); ++i) {
    inverse.data_ptr<std::int64_t>()[places.data_ptr<std::int64_t>()[i]] = i;
  }
  at::Tensor sum = at::zeros({n_tokens, width}, rows.options());
  dispatch(rows, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t* const where = inverse.data_ptr<std::int64_t>();
    const T* const from = rows.data_ptr<T>();
    const T* const factor = factors.defined() ? factors.data_ptr<T>() : nullptr;
    T* const to = sum.data_ptr<T>();
    at::parallel_for(0, n_tokens, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t place = begin * k; place < end * k; ++place) {
        const T w = factor == nullptr ? T(1) : factor[place];
        const T* const row = from + where[place] * width;
        T* const out = to + place / k * width;
        for (std::int64_t j = 0; j < width; ++j) out[j] += w * row[j];
      }
    });
  });
  return sum;
}

struct RoutedExperts : Function<RoutedExperts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& ids_any,
                            const at::Tensor& weights_any, const at::Tensor& gate_up, const at::Tensor& down) {
    const at::Tensor ids = ids_any.contiguous();
    const at::Tensor weights = weights_any.contiguous();
    const std::int64_t k = ids.size(1);
    const std::int64_t width = down.size(2);
    const ByExpert sorted = sort_by_expert(ids, gate_up.size(0));
    const at::Tensor rows = x.index_select(0, at::div(sorted.places, k, "floor"));
    const at::Tensor both = product_by_expert(sorted, rows, 2 * width, [&](std::int64_t e) { return gate_up[e].t(); });
    const at::Tensor act = at::silu(both.narrow(1, 0, width)) * both.narrow(1, width, width);
    const at::Tensor out = product_by_expert(sorted, act, x.size(1), [&](std::int64_t e) { return down[e].t(); });
    context->save_for_backward({ids, weights, gate_up, down, rows, both, act, out});
    return gather_sum(out, sorted.places, k, weights);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& ids = saved[0];
    const at::Tensor& weights = saved[1];
    const at::Tensor& gate_up = saved[2];
    const at::Tensor& down = saved[3];
    const at::Tensor& rows = saved[4];
    const at::Tensor& both = saved[5];
    const at::Tensor& act = saved[6];
    const at::Tensor& out = saved[7];
    const std::int64_t k = ids.size(1);
    const std::int64_t width = down.size(2);
    const ByExpert sorted = sort_by_expert(ids, gate_up.size(0));
    const at::Tensor dy = grads[0].contiguous().index_select(0, at::div(sorted.places, k, "floor"));  // [N * k, H]
    at::Tensor d_weights = at::empty_like(weights);
    d_weights.view({-1}).index_copy_(0, sorted.places, (dy * out).sum(1));
    const at::Tensor d_out = dy * weights.view({-1, 1}).index_select(0, sorted.places);
    const at::Tensor d_act = product_by_expert(sorted, d_out, width, [&](std::int64_t e) { return down[e]; });
    const at::Tensor d_down = outer_by_expert(sorted, d_out, act);
    const at::Tensor gate = both.narrow(1, 0, width);
    const at::Tensor up = both.narrow(1, width, width);
    const at::Tensor s = at::sigmoid(gate);
    const at::Tensor silu = gate * s;
    const at::Tensor d_both = at::cat({d_act * up * (s + silu * (1 - s)), d_act * silu}, 1);
    const at::Tensor d_gate_up = outer_by_expert(sorted, d_both, rows);
    const at::Tensor d_rows =
        product_by_expert(sorted, d_both, gate_up.size(2), [&](std::int64_t e) { return gate_up[e]; });
    return {gather_sum(d_rows, sorted.places, k, {}), at::Tensor(), d_weights, d_gate_up, d_down};
  }
};

/// One head of one row: strides in elements from a token to the next.
template <typename T>
struct Head {
  const T *q, *k, *v, *alpha, *beta;
  std::int64_t n_tokens, n_heads, dk, dv;

  [[nodiscard]] std::int64_t key_stride() const { return n_heads * dk; }
  [[nodiscard]] std::int64_t value_stride() const { return n_heads * dv; }
};

/// The step of token t from `before` to `after` [dk, dv], which may be the same place; u [dv] = beta (v - k S).
template <typename T>
void delta_step(const Head<T>& h, std::int64_t t, const T* before, T* after, T* u) {
  const T* const k = h.k + t * h.key_stride();
  const T* const v = h.v + t * h.value_stride();
  const T alpha = h.alpha[t * h.n_heads];
  const T beta = h.beta[t * h.n_heads];
  for (std::int64_t j = 0; j < h.dv; ++j) u[j] = 0;
  for (std::int64_t i = 0; i < h.dk; ++i) {
    for (std::int64_t j = 0; j < h.dv; ++j) {
      after[i * h.dv + j] = alpha * before[i * h.dv + j];
      u[j] += k[i] * after[i * h.dv + j];
    }
  }
  for (std::int64_t j = 0; j < h.dv; ++j) u[j] = beta * (v[j] - u[j]);
  for (std::int64_t i = 0; i < h.dk; ++i) {
    for (std::int64_t j = 0; j < h.dv; ++j) after[i * h.dv + j] += k[i] * u[j];
  }
}

template <typename T>
void delta_forward(const Head<T>& h, T* o) {
  std::vector<T> state(static_cast<std::size_t>(h.dk * h.dv), T(0));
  std::vector<T> u(static_cast<std::size_t>(h.dv));
  for (std::int64_t t = 0; t < h.n_tokens; ++t) {
    delta_step(h, t, state.data(), state.data(), u.data());
    const T* const q = h.q + t * h.key_stride();
    T* const out = o + t * h.value_stride();
    for (std::int64_t j = 0; j < h.dv; ++j) out[j] = 0;
    for (std::int64_t i = 0; i < h.dk; ++i) {
      for (std::int64_t j = 0; j < h.dv; ++j) out[j] += q[i] * state[static_cast<std::size_t>(i * h.dv + j)];
    }
  }
}

/// The states of all tokens are made once more, then the steps are undone from the last one. `d` has the layout of `h`.
template <typename T>
void delta_backward(const Head<T>& h, const T* d_o, T* d_q, T* d_k, T* d_v, T* d_alpha, T* d_beta) {
  const std::int64_t size = h.dk * h.dv;
  std::vector<T> states(static_cast<std::size_t>((h.n_tokens + 1) * size), T(0));
  std::vector<T> us(static_cast<std::size_t>(h.n_tokens * h.dv));
  for (std::int64_t t = 0; t < h.n_tokens; ++t) {
    delta_step(h, t, states.data() + t * size, states.data() + (t + 1) * size, us.data() + t * h.dv);
  }
  std::vector<T> d_state(static_cast<std::size_t>(size), T(0));
  std::vector<T> d_u(static_cast<std::size_t>(h.dv));
  T* const ds = d_state.data();
  for (std::int64_t t = h.n_tokens; t-- > 0;) {
    const T* const before = states.data() + t * size;
    const T* const after = before + size;
    const T* const u = us.data() + t * h.dv;
    const T* const q = h.q + t * h.key_stride();
    const T* const k = h.k + t * h.key_stride();
    const T* const v = h.v + t * h.value_stride();
    const T* const dout = d_o + t * h.value_stride();
    const T alpha = h.alpha[t * h.n_heads];
    const T beta = h.beta[t * h.n_heads];
    T* const dq = d_q + t * h.key_stride();
    T* const dk = d_k + t * h.key_stride();
    for (std::int64_t j = 0; j < h.dv; ++j) d_u[static_cast<std::size_t>(j)] = 0;
    for (std::int64_t i = 0; i < h.dk; ++i) {
      T to_q = 0;
      T to_k = 0;
      for (std::int64_t j = 0; j < h.dv; ++j) {
        to_q += after[i * h.dv + j] * dout[j];
        ds[i * h.dv + j] += q[i] * dout[j];
        to_k += ds[i * h.dv + j] * u[j];
        d_u[static_cast<std::size_t>(j)] += k[i] * ds[i * h.dv + j];
      }
      dq[i] = to_q;
      dk[i] = to_k;
    }
    T to_beta = 0;
    for (std::int64_t j = 0; j < h.dv; ++j) {
      T& d = d_u[static_cast<std::size_t>(j)];
      T p = 0;  // (k S)_j after the decay
      for (std::int64_t i = 0; i < h.dk; ++i) p += k[i] * alpha * before[i * h.dv + j];
      to_beta += d * (v[j] - p);
      d *= beta;
      d_v[t * h.value_stride() + j] = d;
    }
    d_beta[t * h.n_heads] = to_beta;
    T to_alpha = 0;
    for (std::int64_t i = 0; i < h.dk; ++i) {
      T to_k = 0;
      for (std::int64_t j = 0; j < h.dv; ++j) {
        const T du = d_u[static_cast<std::size_t>(j)];
        to_k -= alpha * before[i * h.dv + j] * du;
        ds[i * h.dv + j] -= k[i] * du;
        to_alpha += ds[i * h.dv + j] * before[i * h.dv + j];
        ds[i * h.dv + j] *= alpha;
      }
      dk[i] += to_k;
    }
    d_alpha[t * h.n_heads] = to_alpha;
  }
}

/// Calls body(Head, index of its first key element, of its first value element, of its first gate) for every row's
/// every head.
template <typename T, typename Body>
void for_each_head(const variable_list& in, Body body) {
  const std::int64_t n_tokens = in[0].size(1);
  const std::int64_t n_heads = in[0].size(2);
  const std::int64_t dk = in[0].size(3);
  const std::int64_t dv = in[2].size(3);
  at::parallel_for(0, in[0].size(0) * n_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t gate = i / n_heads * n_tokens * n_heads + i % n_heads;
      const Head<T> head{in[0].data_ptr<T>() + gate * dk,
                         in[1].data_ptr<T>() + gate * dk,
                         in[2].data_ptr<T>() + gate * dv,
                         in[3].data_ptr<T>() + gate,
                         in[4].data_ptr<T>() + gate,
                         n_tokens,
                         n_heads,
                         dk,
                         dv};
      body(head, gate * dk, gate * dv, gate);
    }
  });
}

struct DeltaRule : Function<DeltaRule> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& alpha, const at::Tensor& beta) {
    const variable_list in = {q.contiguous(), k.contiguous(), v.contiguous(), alpha.contiguous(), beta.contiguous()};
    at::Tensor o = at::empty_like(in[2]);
    dispatch(q, [&](auto zero) {
      using T = decltype(zero);
      for_each_head<T>(in, [&](const Head<T>& head, std::int64_t, std::int64_t value, std::int64_t) {
        delta_forward(head, o.data_ptr<T>() + value);
      });
    });
    context->save_for_backward(in);
    return o;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list in = context->get_saved_variables();
    const at::Tensor d_o = grads[0].contiguous();
    variable_list d;
    for (const at::Tensor& tensor : in) d.push_back(at::empty_like(tensor));
    dispatch(d_o, [&](auto zero) {
      using T = decltype(zero);
      for_each_head<T>(in, [&](const Head<T>& head, std::int64_t key, std::int64_t value, std::int64_t gate) {
        delta_backward(head, d_o.data_ptr<T>() + value, d[0].data_ptr<T>() + key, d[1].data_ptr<T>() + key,
                       d[2].data_ptr<T>() + value, d[3].data_ptr<T>() + gate, d[4].data_ptr<T>() + gate);
      });
    });
    return d;
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& g, double eps) { return RmsNorm::apply(x, g, eps); }

at::Tensor routed_experts(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights,
                          const at::Tensor& gate_up, const at::Tensor& down) {
  return RoutedExperts::apply(x, ids, weights, gate_up, down);
}

at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& alpha,
                      const at::Tensor& beta) {
  return DeltaRule::apply(q, k, v, alpha, beta);
}

}  // namespace kalibri::reference::training

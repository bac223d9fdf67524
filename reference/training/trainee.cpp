#include "reference/training/trainee.hpp"

#include <cmath>

#include "reference/error.hpp"
#include "reference/training/layouts.hpp"

namespace kalibri::reference::training {
namespace {

std::uint64_t scatter(std::uint64_t z) {  // SplitMix64's finaliser
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// A normal number by Box and Muller from words 2 i and 2 i + 1 of stream `key`.
double normal(std::uint64_t key, std::uint64_t i) {
  const auto uniform = [&](std::uint64_t index) {  // in (0, 1)
    return (static_cast<double>(scatter(key + (index + 1) * 0x9E3779B97F4A7C15U) >> 12) + 0.5) * 0x1p-52;
  };
  return std::sqrt(-2 * std::log(uniform(2 * i))) * std::cos(6.283185307179586 * uniform(2 * i + 1));
}

}  // namespace

Weights::Weights(const ParameterTable& table, at::ScalarType dtype)
    : values_(at::zeros({table.n_elements}, dtype)), grads_(at::zeros({table.n_elements}, dtype)) {
  for (const Parameter& p : table.parameters) {
    at::Tensor view = values_.narrow(0, p.offset, p.n_elements).view(p.shape).detach();
    if (p.is_learnt) {
      view.requires_grad_(true);
      view.mutable_grad() = grads_.narrow(0, p.offset, p.n_elements).view(p.shape);
    }
    views_.emplace(p.name, view);
  }
}

void initialise(const ParameterTable& table, std::uint64_t seed, const at::Tensor& values) {
  std::uint64_t number = 0;
  std::vector<float> drawn(static_cast<std::size_t>(table.n_elements));
  for (const Parameter& p : table.parameters) {
    const std::uint64_t key = scatter(scatter(seed) + ++number);
    for (std::int64_t i = 0; i < p.n_elements; ++i) {
      const double z = p.spread == 0 ? 0 : normal(key, static_cast<std::uint64_t>(i));
      drawn[static_cast<std::size_t>(p.offset + i)] =
          static_cast<float>(static_cast<double>(p.mean) + static_cast<double>(p.spread) * z);
    }
  }
  values.copy_(at::from_blob(drawn.data(), {table.n_elements}, at::kFloat));
}

at::Tensor Choices::choose(std::vector<at::Tensor>& list, std::size_t index, const std::function<at::Tensor()>& fresh) {
  if (replay) return list.at(index);
  if (list.size() <= index) list.resize(index + 1);
  return list[index] = fresh();
}

Trainee make_trainee(const std::string& model_type, const std::string& size) {
  if (size != "nano" && size != "tiny") throw Error("size '" + size + "': expected nano or tiny");
  if (model_type == "kolibri1") return make_kolibri1_trainee(size == "nano");
  if (model_type == "qwen4_exp") return make_qwen4_exp_trainee(size == "nano");
  throw Error("model '" + model_type + "': expected kolibri1 or qwen4_exp");
}

Layout layout_of(const std::string& model_type, const std::string& size) {
  return make_trainee(model_type, size).layout;
}

at::Tensor target_loss(const at::Tensor& logits, const Batch& batch) {
  const at::Tensor targets = at::tensor(batch.targets, at::kLong);
  return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, -100);
}

at::Tensor ids_tensor(const Batch& batch) { return at::tensor(batch.ids, at::kLong); }

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return at::mm(x.reshape({-1, x.size(-1)}), weight.t()).reshape(shape);
}

at::Tensor swiglu(const at::Tensor& x, const Weights& w, const std::string& prefix) {
  const at::Tensor act =
      at::silu(apply_linear(x, w[prefix + ".gate_proj.weight"])) * apply_linear(x, w[prefix + ".up_proj.weight"]);
  return apply_linear(act, w[prefix + ".down_proj.weight"]);
}

at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& masked,
                            at::Tensor* probabilities) {
  const std::int64_t n_rows = q.size(0);
  const std::int64_t n_queries = q.size(1);
  const std::int64_t head_dim = q.size(3);
  const std::int64_t n_keys = k.size(1);
  const std::int64_t n_kv_heads = k.size(2);
  const std::int64_t n_repeats = q.size(2) / n_kv_heads;
  const at::Tensor queries = (q / std::sqrt(static_cast<double>(head_dim)))
                                 .reshape({n_rows, n_queries, n_kv_heads, n_repeats, head_dim})
                                 .permute({0, 2, 3, 1, 4})
                                 .reshape({n_rows * n_kv_heads, n_repeats * n_queries, head_dim});
  const at::Tensor keys = k.permute({0, 2, 3, 1}).reshape({n_rows * n_kv_heads, head_dim, n_keys});
  const at::Tensor values = v.permute({0, 2, 1, 3}).reshape({n_rows * n_kv_heads, n_keys, head_dim});
  const at::Tensor scores = at::bmm(queries, keys)
                                .reshape({n_rows, n_kv_heads, n_repeats, n_queries, n_keys})
                                .masked_fill(masked.reshape({n_rows, 1, 1, n_queries, n_keys}), -INFINITY);
  const at::Tensor p = at::softmax(scores, -1);
  if (probabilities != nullptr) *probabilities = p;
  return at::bmm(p.reshape({n_rows * n_kv_heads, n_repeats * n_queries, n_keys}), values)
      .reshape({n_rows, n_kv_heads, n_repeats, n_queries, head_dim})
      .permute({0, 3, 1, 2, 4})
      .reshape({n_rows, n_queries, n_kv_heads * n_repeats, head_dim});
}

at::Tensor mask_of(const Batch& batch) {
  const at::Tensor documents = at::tensor(batch.documents, at::kInt).reshape({batch.n_rows, batch.n_tokens});
  const at::Tensor place = at::arange(batch.n_tokens, at::kLong);
  return at::logical_or(documents.unsqueeze(2) != documents.unsqueeze(1), place.unsqueeze(0) > place.unsqueeze(1));
}

}  // namespace kalibri::reference::training

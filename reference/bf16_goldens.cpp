// The program kalibri-bf16-goldens: what LibTorch gives for each operation of a model that computes in bf16, from
// seeded inputs. Where LibTorch's own bf16 operation rounds more often than once at its end (SiLU, norms, rotation,
// sums, attention), the operation is composed of f32 ones and rounded once: what models written for it do too.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "reference/safetensors_writer.hpp"

namespace {

using at::Tensor;
using kalibri::reference::StoredTensor;

constexpr std::int64_t kHidden = 320;  // two whole groups of 128 columns and a half
constexpr double kEps = 1e-6;

Tensor wide(const Tensor& x) { return x.to(at::kFloat); }
Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16); }

/// splitmix64; uniform numbers in [-1, 1) of 24 bits.
class Generator {
 public:
  float uniform() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<float>(static_cast<std::int64_t>(z >> 39) - (1 << 24)) * 0x1p-24F;
  }
  /// Uniform numbers in [-scale, scale).
  Tensor floats(at::IntArrayRef shape, double scale) {
    Tensor tensor = at::empty(shape, at::kFloat);
    float* data = tensor.data_ptr<float>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = uniform();
    return tensor * scale;
  }
  Tensor bf16(at::IntArrayRef shape, double scale) { return rounded(floats(shape, scale)); }

 private:
  std::uint64_t state_ = 7;
};

/// Inputs and outputs under their names, OPERATION.NAME.
class Collection {
 public:
  void add(const std::string& name, const Tensor& tensor) {
    const Tensor whole = tensor.contiguous();
    const char* dtype = whole.scalar_type() == at::kBFloat16 ? "BF16"
                        : whole.scalar_type() == at::kLong   ? "I64"
                                                             : "F32";
    const auto* bytes = static_cast<const char*>(whole.data_ptr());
    tensors_.push_back({name, dtype, whole.sizes().vec(), std::string(bytes, whole.nbytes())});
  }
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  std::vector<StoredTensor> tensors_;
};

/// A table of f32 whose elements are in the middle between two bf16 numbers in each second place.
void embedding(Generator& random, Collection& out) {
  Tensor table = random.floats({16, kHidden}, 2.0);
  auto* bits = static_cast<std::uint32_t*>(table.data_ptr());
  for (std::int64_t i = 0; i < table.numel(); i += 2) bits[i] = (bits[i] & 0xffff0000U) | 0x8000U;
  out.add("embedding.table", table);
  out.add("embedding.out", rounded(table));
}

void linear(Generator& random, Collection& out) {
  const Tensor x = random.bf16({7, kHidden}, 4.0);
  const Tensor w = random.bf16({96, kHidden}, 0.25);
  out.add("linear.x", x);
  out.add("linear.weight", w);
  out.add("linear.out", at::linear(x, w));  // sums in f32 and rounds once: the same as of f32 tensors, rounded
}

Tensor normalised(const Tensor& x) { return wide(x) * at::rsqrt(wide(x).square().mean(-1, /*keepdim=*/true) + kEps); }

void norms(Generator& random, Collection& out) {
  const Tensor x = random.bf16({7, kHidden}, 30.0);
  const Tensor w = random.bf16({kHidden}, 3.0);
  out.add("rms_norm.x", x);
  out.add("rms_norm.weight", w);
  out.add("rms_norm.out", rounded(normalised(x) * wide(w)));
  // As transformers' gated norms have it: rounded, times the weight in bf16, times the gate in f32.
  const Tensor gate = random.bf16({7, kHidden}, 8.0);
  out.add("gated_norm.x", x);
  out.add("gated_norm.weight", w);
  out.add("gated_norm.gate", gate);
  out.add("gated_norm.out", rounded(wide(w * rounded(normalised(x))) * at::sigmoid(wide(gate))));
  out.add("l2_norm.x", x);
  out.add("l2_norm.out", rounded(wide(x) * at::rsqrt(wide(x).square().sum(-1, /*keepdim=*/true) + kEps)));
}

void elementwise(Generator& random, Collection& out) {
  const Tensor gate = random.bf16({16, 128}, 12.0);
  const Tensor up = random.bf16({16, 128}, 5.0);
  out.add("silu_mul.gate", gate);
  out.add("silu_mul.up", up);
  // LibTorch 1.13's own silu in bf16 rounds the exponential, the sum and the quotient; later ones compute it in f32.
  out.add("silu_mul.out", rounded(at::silu(wide(gate))) * up);
  out.add("sigmoid.x", gate);
  out.add("sigmoid.out", at::sigmoid(gate));
  out.add("add.a", gate);
  out.add("add.b", up);
  out.add("add.out", gate + up);
}

void convolution(Generator& random, Collection& out) {
  const Tensor x = random.bf16({12, 128}, 3.0);  // [tokens, channels]
  const Tensor w = random.bf16({128, 4}, 1.0);
  const Tensor padded = at::cat({at::zeros({3, 128}), wide(x)}, 0).t().unsqueeze(0);
  const Tensor y =
      at::conv1d(padded, wide(w).unsqueeze(1), {}, at::IntArrayRef{1}, at::IntArrayRef{0}, at::IntArrayRef{1}, 128);
  out.add("conv_silu.x", x);
  out.add("conv_silu.weight", w);
  out.add("conv_silu.out", rounded(at::silu(y)).squeeze(0).t());
}

void rope(Generator& random, Collection& out) {
  const Tensor x = random.bf16({9, 64}, 4.0);
  const Tensor theta = at::pow(at::scalar_tensor(1e4, at::kDouble), at::arange(0, 32, at::kDouble) * (-2.0 / 64));
  const Tensor angle = at::arange(0, 9, at::kFloat).unsqueeze(1) * theta.to(at::kFloat);
  const Tensor a = wide(x).narrow(1, 0, 32);
  const Tensor b = wide(x).narrow(1, 32, 32);
  const Tensor cos = at::cos(angle);
  const Tensor sin = at::sin(angle);
  out.add("rope.x", x);
  out.add("rope.cos", cos);
  out.add("rope.sin", sin);
  out.add("rope.out", rounded(at::cat({a * cos - b * sin, b * cos + a * sin}, 1)));
}

/// One head, causal.
void attention(Generator& random, Collection& out) {
  const std::int64_t n = 40;
  const std::int64_t d = 64;
  const Tensor q = random.bf16({n, d}, 2.0);
  const Tensor k = random.bf16({n, d}, 2.0);
  const Tensor v = random.bf16({n, d}, 3.0);
  const Tensor scores = at::matmul(wide(q), wide(k).t()) / 8.0;  // sqrt(64)
  const Tensor p = at::softmax(scores + at::triu(at::full({n, n}, -INFINITY), 1), -1);
  out.add("attention.q", q);
  out.add("attention.k", k);
  out.add("attention.v", v);
  out.add("attention.out", rounded(at::matmul(p, wide(v))));
}

/// Experts' outputs in rising expert id.
void combine(Generator& random, Collection& out) {
  const Tensor weights = at::sigmoid(random.floats({7, 6}, 3.0));  // f32, as the router has them
  const Tensor outputs = random.bf16({7, 6, kHidden}, 5.0);
  const Tensor shared = random.bf16({7, kHidden}, 5.0);
  const Tensor products = rounded(weights).unsqueeze(2) * outputs;
  const Tensor routed = rounded(wide(products).sum(1));
  const Tensor served = rounded((weights.unsqueeze(2) * wide(outputs)).sum(1));
  out.add("combine.weights", weights);
  out.add("combine.outputs", outputs);
  out.add("combine.shared", shared);
  out.add("combine.routed", routed);
  out.add("combine.routed_served", served);
  out.add("combine.out", routed + shared);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: kalibri-bf16-goldens OUT.safetensors\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    Generator random;
    Collection out;
    embedding(random, out);
    linear(random, out);
    norms(random, out);
    elementwise(random, out);
    convolution(random, out);
    rope(random, out);
    attention(random, out);
    combine(random, out);
    kalibri::reference::write_text(argv[1], kalibri::reference::safetensors_text(out.tensors()));
    fmt::print("{}: {} tensors, LibTorch {}\n", argv[1], out.tensors().size(), KALIBRI_TORCH_VERSION);
    return 0;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "{}\n", failure.what());
    return 2;
  }
}

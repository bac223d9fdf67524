// Single operations in bf16 against LibTorch's on bf16 tensors (golden set bf16-operations): each element within one
// bf16 number of LibTorch's, and no more of them off it than the differences within f32 explain.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>

#include "engine/kernels/codec.hpp"
#include "engine/model/experts.hpp"
#include "engine/model/residual.hpp"
#include "engine/runtime/weight_forms.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"

namespace kalibri::model {

namespace {

using kernels::kernels;
using runtime::Arithmetic;
using runtime::Workers;

using Floats = std::vector<float>;
constexpr std::int64_t kHidden = 320;
constexpr float kEps = 1e-6F;

class Golden {
 public:
  explicit Golden(const std::filesystem::path& set)
      : tensors_(fixtures::read_safetensors(set / "operations.safetensors")) {}

  [[nodiscard]] Floats floats(const std::string& name) const {
    const std::vector<double> values = tensors_.at(name).values();
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::int64_t size(const std::string& name, std::size_t axis) const {
    return tensors_.at(name).shape.at(axis);
  }

 private:
  std::map<std::string, fixtures::StoredTensor> tensors_;
};

kernels::MatrixView view(const Floats& values, std::int64_t n_cols) {
  return {.n_rows = static_cast<std::int64_t>(values.size()) / n_cols, .n_cols = n_cols, .data = values.data()};
}

/// Expert e of token t, which has a one at column t alone, puts out row [t, e] of `outputs`: gate and up make that one
/// of 64 and 1/64, and silu(64) is 64.
class GivenOutputs final : public runtime::ExpertStore {
 public:
  GivenOutputs(const Floats& outputs, std::int64_t n_tokens, std::int64_t top_k)
      : gate_(static_cast<std::size_t>(n_tokens * kHidden)), up_(gate_), down_(static_cast<std::size_t>(top_k)) {
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      gate_[static_cast<std::size_t>(t * kHidden + t)] = 64;
      up_[static_cast<std::size_t>(t * kHidden + t)] = 1.0F / 64;
    }
    for (std::int64_t e = 0; e < top_k; ++e) {
      for (std::int64_t i = 0; i < kHidden; ++i) {
        for (std::int64_t t = 0; t < n_tokens; ++t) {
          down_[static_cast<std::size_t>(e)].push_back(
              outputs[static_cast<std::size_t>((t * top_k + e) * kHidden + i)]);
        }
      }
    }
  }
  std::unique_ptr<runtime::ExpertVisit> visit(std::int64_t, std::vector<std::int32_t> experts) override {
    return std::make_unique<Visit>(*this, std::move(experts));
  }
  void leave_layer(std::int64_t) override {}

 private:
  class Visit final : public runtime::ExpertVisit {
   public:
    Visit(const GivenOutputs& store, std::vector<std::int32_t> experts) : store_(store), experts_(std::move(experts)) {}
    Taken take() override {  // any order, from any thread
      const std::size_t index = next_.fetch_add(1);
      const auto width = static_cast<std::int64_t>(store_.gate_.size()) / kHidden;
      const Floats& down = store_.down_[static_cast<std::size_t>(experts_[index])];
      return {index, {view(store_.gate_, kHidden), view(store_.up_, kHidden), view(down, width)}};
    }
    void give_back(std::size_t) override {}

   private:
    const GivenOutputs& store_;
    std::vector<std::int32_t> experts_;
    std::atomic<std::size_t> next_ = 0;
  };

  Floats gate_, up_;
  std::vector<Floats> down_;
};

Floats embedding(const Golden& golden, Workers& workers) {
  const Floats table = golden.floats("embedding.table");
  runtime::WeightForms forms(runtime::Precision::parse(workers.arithmetic().rounds() ? "bf16" : "native"));
  forms.classify(table.data(), checkpoint::WeightClass::embed);
  Floats rows(table.size());
  for (std::int64_t id = 0; id < golden.size("embedding.table", 0); ++id) {
    forms.decode_row(view(table, kHidden), id, rows.data() + id * kHidden);
  }
  return rows;
}

Floats linear(const Golden& golden, Workers& workers) {
  const Floats x = golden.floats("linear.x");
  const Floats w = golden.floats("linear.weight");
  const std::int64_t n = golden.size("linear.x", 0);
  Floats y(static_cast<std::size_t>(n * golden.size("linear.weight", 0)));
  runtime::linear(workers, view(w, kHidden), x.data(), n, y.data());
  return y;
}

Floats rms_norm(const Golden& golden, Workers& workers) {
  Floats x = golden.floats("rms_norm.x");
  const Floats w = golden.floats("rms_norm.weight");
  for (std::size_t i = 0; i < x.size(); i += w.size()) {
    kernels().rms_norm(x.data() + i, w.data(), kEps, kHidden, x.data() + i);
    workers.round(x.data() + i, kHidden);
  }
  return x;
}

/// As DeltaNet's output norm has it.
Floats gated_norm(const Golden& golden, Workers& workers) {
  Floats x = golden.floats("gated_norm.x");
  const Floats w = golden.floats("gated_norm.weight");
  Floats gate = golden.floats("gated_norm.gate");
  kernels().sigmoid(gate.data(), static_cast<std::int64_t>(gate.size()), gate.data());
  for (std::size_t i = 0; i < x.size(); i += w.size()) {
    kernels().rms_norm(x.data() + i, nullptr, kEps, kHidden, x.data() + i);
    workers.round(x.data() + i, kHidden);
    kernels().multiply(w.data(), kHidden, x.data() + i);
    workers.round(x.data() + i, kHidden);
    kernels().multiply(gate.data() + i, kHidden, x.data() + i);
    workers.round(x.data() + i, kHidden);
  }
  return x;
}

Floats l2_norm(const Golden& golden, Workers& workers) {
  Floats x = golden.floats("l2_norm.x");
  for (std::size_t i = 0; i < x.size(); i += kHidden) {
    const float norm = std::sqrt(kernels().dot(x.data() + i, x.data() + i, kHidden) + kEps);
    kernels().scale(1.0F / norm, x.data() + i, kHidden, x.data() + i);
    workers.round(x.data() + i, kHidden);
  }
  return x;
}

/// A SwiGLU whose projections pick halves of x = [gate, up] and hand the product through.
Floats silu_mul(const Golden& golden, Workers& workers) {
  const Floats gate = golden.floats("silu_mul.gate");
  const Floats up = golden.floats("silu_mul.up");
  const std::int64_t width = golden.size("silu_mul.gate", 1);
  const std::int64_t n = golden.size("silu_mul.gate", 0);
  Floats x;
  for (std::int64_t t = 0; t < n; ++t) {
    x.insert(x.end(), gate.begin() + t * width, gate.begin() + (t + 1) * width);
    x.insert(x.end(), up.begin() + t * width, up.begin() + (t + 1) * width);
  }
  const auto picks = [&](std::int64_t first, std::int64_t n_cols) {
    Floats w(static_cast<std::size_t>(width * n_cols));
    for (std::int64_t i = 0; i < width; ++i) w[static_cast<std::size_t>(i * n_cols + first + i)] = 1;
    return w;
  };
  const Floats first_half = picks(0, 2 * width);
  const Floats second_half = picks(width, 2 * width);
  const Floats all = picks(0, width);
  Floats y(gate.size());
  ExpertBuffers buffers;
  swiglu(workers, {view(first_half, 2 * width), view(second_half, 2 * width), view(all, width)}, x.data(), n, y.data(),
         buffers);
  return y;
}

Floats sigmoid(const Golden& golden, Workers& workers) {
  Floats x = golden.floats("sigmoid.x");
  kernels().sigmoid(x.data(), static_cast<std::int64_t>(x.size()), x.data());
  workers.round(x.data(), static_cast<std::int64_t>(x.size()));
  return x;
}

Floats add(const Golden& golden, Workers& workers) {
  Floats sum = golden.floats("add.a");
  const Floats b = golden.floats("add.b");
  const auto n = static_cast<std::int64_t>(sum.size());
  add_to_residual(workers, n, sum.data(), [&](float* residual) { kernels().add(b.data(), n, residual); });
  return sum;
}

Floats conv_silu(const Golden& golden, Workers& workers) {
  const Floats x = golden.floats("conv_silu.x");
  const Floats stored = golden.floats("conv_silu.weight");  // [channels, taps]
  const std::int64_t n_channels = golden.size("conv_silu.weight", 0);
  const std::int64_t n_taps = golden.size("conv_silu.weight", 1);
  Floats w(stored.size());
  for (std::int64_t c = 0; c < n_channels; ++c) {
    for (std::int64_t j = 0; j < n_taps; ++j) {
      w[static_cast<std::size_t>(j * n_channels + c)] = stored[static_cast<std::size_t>(c * n_taps + j)];
    }
  }
  Floats joined(static_cast<std::size_t>((n_taps - 1) * n_channels));
  joined.insert(joined.end(), x.begin(), x.end());
  Floats y(x.size());
  for (std::int64_t t = 0; t < golden.size("conv_silu.x", 0); ++t) {
    const float* rows[kernels::kMaxConvTaps];
    for (std::int64_t j = 0; j < n_taps; ++j) rows[j] = joined.data() + (t + j) * n_channels;
    kernels().conv_silu(rows, w.data(), n_taps, n_channels, y.data() + t * n_channels);
    workers.round(y.data() + t * n_channels, n_channels);
  }
  return y;
}

Floats rope(const Golden& golden, Workers& workers) {
  Floats x = golden.floats("rope.x");
  const Floats cos = golden.floats("rope.cos");
  const Floats sin = golden.floats("rope.sin");
  const std::int64_t half = golden.size("rope.cos", 1);
  for (std::int64_t t = 0; t < golden.size("rope.x", 0); ++t) {
    kernels().rope(x.data() + 2 * t * half, cos.data() + t * half, sin.data() + t * half, half);
    workers.round(x.data() + 2 * t * half, 2 * half);
  }
  return x;
}

Floats attention(const Golden& golden, Workers& workers) {
  const Floats q = golden.floats("attention.q");
  const Floats k = golden.floats("attention.k");
  const Floats v = golden.floats("attention.v");
  const std::int64_t n = golden.size("attention.q", 0);
  const std::int64_t d = golden.size("attention.q", 1);
  Floats context(q.size());
  Floats scores(static_cast<std::size_t>(n));
  for (std::int64_t t = 0; t < n; ++t) {
    const kernels::KeyRun keys{k.data(), v.data(), t + 1};
    kernels::AttentionHeads head;
    head.queries = q.data() + t * d;
    head.runs = &keys;
    head.n_runs = 1;
    head.row_stride = d;
    head.head_dim = d;
    head.scale = 1.0F / std::sqrt(static_cast<float>(d));
    head.scores = scores.data();
    head.out = context.data() + t * d;
    kernels().attention(head);
    workers.round(head.out, d);
  }
  return context;
}

Floats routed_sum(const Golden& golden, Workers& workers) {
  Floats weights = golden.floats("combine.weights");
  const std::int64_t n = golden.size("combine.weights", 0);
  const std::int64_t top_k = golden.size("combine.weights", 1);
  GivenOutputs experts(golden.floats("combine.outputs"), n, top_k);
  if (workers.arithmetic().rounds_all()) kernels::round_to_bf16(weights.data(), n * top_k);  // as the router hands them
  Floats x(static_cast<std::size_t>(n * kHidden));
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < n; ++t) {
    x[static_cast<std::size_t>(t * kHidden + t)] = 1;
    for (std::int64_t e = 0; e < top_k; ++e) ids.push_back(static_cast<std::int32_t>(top_k - 1 - e));
    std::reverse(weights.begin() + t * top_k, weights.begin() + (t + 1) * top_k);  // best last: order must not matter
  }
  Floats sum(x.size());
  ExpertBuffers buffers;
  RoutedExperts(experts, 0, n, top_k, ids.data()).run(workers, x.data(), kHidden, weights.data(), sum.data(), buffers);
  return sum;
}

Floats combine(const Golden& golden, Workers& workers) {
  Floats sum = routed_sum(golden, workers);
  const Floats shared = golden.floats("combine.shared");
  kernels().add(shared.data(), static_cast<std::int64_t>(sum.size()), sum.data());
  workers.round(sum.data(), static_cast<std::int64_t>(sum.size()));
  return sum;
}

struct Operation {
  const char* name;      // of the golden outputs
  std::int64_t n_terms;  // f32 roundings on the way to one element, at most
  bool rounds_within;    // also between its parts, not only at its end
  Floats (*run)(const Golden&, Workers&);
  Arithmetic::Compute compute = Arithmetic::Compute::bf16;
};

const std::vector<Operation> kOperations = {
    {"embedding.out", 0, false, embedding},
    {"linear.out", kHidden, false, linear},
    {"rms_norm.out", kHidden + 5, false, rms_norm},
    {"gated_norm.out", kHidden + 5, true, gated_norm},
    {"l2_norm.out", kHidden + 4, false, l2_norm},
    {"silu_mul.out", 6, true, silu_mul},
    {"sigmoid.out", 5, false, sigmoid},
    {"add.out", 1, false, add},
    {"conv_silu.out", 4 + 6, false, conv_silu},
    {"rope.out", 3, false, rope},
    {"attention.out", 64 + 40 + 6, false, attention},
    {"combine.routed", 2 * 6, true, routed_sum},
    {"combine.out", 2 * 6 + 1, true, combine},
    {"combine.routed_served", 2 * 6, false, routed_sum, Arithmetic::Compute::bf16_served}};

/// How many bf16 numbers from a to b; nothing where one of them is none.
std::optional<int> bf16_distance(float a, float b) {
  const auto place = [](float x) {  // rising with x
    const auto bits = std::bit_cast<std::int32_t>(x);
    return (bits < 0 ? -(bits & 0x7fffffff) : bits) / 0x10000;
  };
  const auto is_bf16 = [](float x) { return (std::bit_cast<std::uint32_t>(x) & 0xffff) == 0; };
  if (!is_bf16(a) || !is_bf16(b)) return std::nullopt;
  return std::abs(place(a) - place(b));
}

struct Agreement {
  std::size_t n_off = 0;  // elements that are not LibTorch's
  int furthest = 0;
  bool all_bf16 = true;
};

Agreement compare(const Floats& ours, const Floats& theirs) {
  REQUIRE(ours.size() == theirs.size());
  Agreement agreement;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const std::optional<int> distance = bf16_distance(ours[i], theirs[i]);
    agreement.all_bf16 &= distance.has_value();
    if (distance != 0) ++agreement.n_off;
    agreement.furthest = std::max(agreement.furthest, distance.value_or(0));
  }
  return agreement;
}

/// Two f32 values that differ by k of their last places have a bf16 rounding boundary between them for k of 65,536
/// elements; each side is at most n_terms / 2 places off.
std::size_t most_off(const Operation& operation, std::size_t n_elements) {
  return static_cast<std::size_t>(
      std::ceil(static_cast<double>(operation.n_terms) * 0x1p-16 * static_cast<double>(n_elements)));
}

bool agrees(const Operation& operation, const Floats& ours, const Floats& theirs) {
  const Agreement agreement = compare(ours, theirs);
  return agreement.all_bf16 && agreement.furthest <= 1 && agreement.n_off <= most_off(operation, ours.size());
}

Floats truncated(Floats x) {
  for (float& v : x) v = std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) & 0xffff0000U);
  return x;
}

Floats rounded(Floats x) {
  kernels::round_to_bf16(x.data(), static_cast<std::int64_t>(x.size()));
  return x;
}

}  // namespace

TEST_CASE("Operations in bf16 give LibTorch's numbers, and wrong roundings of them do not") {
  const auto set = fixtures::find_golden("bf16-operations");
  if (!set.has_value()) KALIBRI_SKIP("golden set bf16-operations is not there");
  const Golden golden(*set);
  ThreadPool pool(2);
  for (const Operation& operation : kOperations) {
    INFO(operation.name);
    const Floats theirs = golden.floats(operation.name);
    Workers in_bf16(pool, {.compute = operation.compute, .residual = Arithmetic::Residual::bf16});
    Workers in_f32(pool);
    const Floats ours = operation.run(golden, in_bf16);
    const Floats unrounded = operation.run(golden, in_f32);
    const Agreement agreement = compare(ours, theirs);
    std::printf("%-22s %5zu elements, %zu off LibTorch's (at most %zu may be), by at most %d\n", operation.name,
                ours.size(), agreement.n_off, most_off(operation, ours.size()), agreement.furthest);
    CHECK(agrees(operation, ours, theirs));
    CHECK_FALSE(agrees(operation, unrounded, theirs));
    CHECK_FALSE(agrees(operation, truncated(unrounded), theirs));
    // Rounded at its end alone: the same where it has no parts to round between, and seen where it has.
    CHECK((rounded(unrounded) == ours) == !operation.rounds_within);
    CHECK(agrees(operation, rounded(unrounded), theirs) == !operation.rounds_within);
  }
}

TEST_CASE("Weights of experts that stay f32 are seen where LibTorch rounds them, and the other way round") {
  const auto set = fixtures::find_golden("bf16-operations");
  if (!set.has_value()) KALIBRI_SKIP("golden set bf16-operations is not there");
  const Golden golden(*set);
  ThreadPool pool(1);
  Workers all(pool, {.compute = Arithmetic::Compute::bf16});
  Workers served(pool, {.compute = Arithmetic::Compute::bf16_served});
  const Operation routed = {"combine.routed", 2 * 6, true, routed_sum};
  CHECK_FALSE(agrees(routed, routed_sum(golden, served), golden.floats("combine.routed")));
  CHECK_FALSE(agrees(routed, routed_sum(golden, all), golden.floats("combine.routed_served")));
}

}  // namespace kalibri::model

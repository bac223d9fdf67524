// The optional tensors are what their names say: each is checked against the golden data, or recomputed from others by
// the model's formulas.
#include <cmath>

#include "fixtures/catch.hpp"
#include "oracle/dump/names.hpp"
#include "reference/stored_matrix.hpp"
#include "reference/tests/difference.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

// These recomputations are in f64, the taps of an f64 run: what is left is the order of sums.
constexpr double kSameNumbers = 1e-12;
constexpr double kGoldenRel = 1e-5;  // f32 golden data

using Values = std::vector<double>;

struct Shape {
  std::int64_t n_tokens, n_heads, n_kv_heads, head_dim, hidden_size, n_experts, window;
};

const Shape kK1{24, 6, 2, 32, 128, 16, 7};

/// x [n, n_in] times W [n_out, n_in], transposed.
Values times(const Values& x, const Values& w, std::int64_t n_in) {
  Values y;
  for (auto row = x.begin(); row != x.end(); row += n_in) {
    for (auto weight = w.begin(); weight != w.end(); weight += n_in) {
      double sum = 0;
      for (std::int64_t i = 0; i < n_in; ++i) sum += row[i] * weight[i];
      y.push_back(sum);
    }
  }
  return y;
}

Values weights(const Checkpoint& checkpoint, const std::string& name, std::int64_t n_rows, std::int64_t n_cols) {
  const StoredMatrix matrix = find_matrix(checkpoint, name, n_rows, n_cols);
  Values out(static_cast<std::size_t>(n_rows * n_cols));
  decode_rows(matrix, 0, n_rows, out.data());
  return out;
}

/// One output at a time: softmax over the visible keys, by the formula.
Values attention(const Values& q, const Values& k, const Values& v, const Shape& s, std::int64_t window) {
  const auto at = [&](const Values& x, std::int64_t t, std::int64_t head, std::int64_t n_heads, std::int64_t d) {
    return x[static_cast<std::size_t>((t * n_heads + head) * s.head_dim + d)];
  };
  Values context;
  for (std::int64_t t = 0; t < s.n_tokens; ++t) {
    for (std::int64_t head = 0; head < s.n_heads; ++head) {
      const std::int64_t kv = head / (s.n_heads / s.n_kv_heads);
      Values sums(static_cast<std::size_t>(s.head_dim), 0.0);
      double denominator = 0;
      for (std::int64_t j = std::max<std::int64_t>(0, t - window + 1); j <= t; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < s.head_dim; ++d)
          score += at(q, t, head, s.n_heads, d) * at(k, j, kv, s.n_kv_heads, d);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
        denominator += weight;
        for (std::int64_t d = 0; d < s.head_dim; ++d)
          sums[static_cast<std::size_t>(d)] += weight * at(v, j, kv, s.n_kv_heads, d);
      }
      for (const double sum : sums) context.push_back(sum / denominator);
    }
  }
  return context;
}

Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_CASE("every tap is what its name says") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const dump::Reader dump = run_golden(*set, set->checkpoint, {"--taps", "all", "--dtype", "f64"});
  const Checkpoint checkpoint(set->checkpoint);
  const auto same = [](const Values& expected, const Values& found) {
    return difference(expected, found, 1).rel <= kSameNumbers;
  };
  for (std::int64_t layer = 0; layer < set->n_layers; ++layer) {
    CAPTURE(layer);
    const auto tap = [&](const char* name) { return read_all(dump, dump::layer_path(layer, name)); };
    const auto golden = [&](const std::string& name) {
      return set->values("layer_0" + std::to_string(layer) + "." + name);
    };
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const bool is_full = layer == 4;

    CHECK(difference(golden("attn_out"), tap("attention_out"), kK1.hidden_size).rel <= kGoldenRel);
    CHECK(difference(golden("mid_residual"), tap("post_attention"), kK1.hidden_size).rel <= kGoldenRel);
    CHECK(difference(golden("moe_out"), tap("moe_out"), kK1.hidden_size).rel <= kGoldenRel);
    CHECK(same(tap("moe_out"), plus(tap("routed_out"), tap("shared_out"))));

    const Values context = attention(tap("q"), tap("k"), tap("v"), kK1, is_full ? kK1.n_tokens : kK1.window);
    CHECK(same(context, tap("attention_context")));
    const std::int64_t q_width = kK1.n_heads * kK1.head_dim;
    const Values o_proj = weights(checkpoint, prefix + "self_attn.o_proj.weight", kK1.hidden_size, q_width);
    CHECK(same(times(context, o_proj, q_width), tap("attention_out")));
    const Values gate = weights(checkpoint, prefix + "mlp.gate.weight", kK1.n_experts, kK1.hidden_size);
    CHECK(same(times(tap("pre_mlp"), gate, kK1.hidden_size), tap("router_logits")));
    // The same recomputation with a window one key longer is another thing.
    if (!is_full) CHECK_FALSE(same(attention(tap("q"), tap("k"), tap("v"), kK1, kK1.window + 1), context));
  }
}

TEST_CASE("the router's gap is the distance of the last chosen expert from the first one left out") {
  const auto set = open_golden_set("kolibri1-k2");
  if (!set) KALIBRI_SKIP("no golden data");
  const dump::Reader dump = run_golden(*set, set->checkpoint, {"--dtype", "f64"});
  for (std::int64_t layer = 0; layer < set->n_layers; ++layer) {
    const std::string name = "layer_0" + std::to_string(layer) + ".router_gap";
    const Difference d = difference(set->values(name), read_all(dump, dump::layer_path(layer, "router_gap")), 1);
    // A difference of two f32 scores of up to about 50, against f64.
    CHECK(d.max_abs <= 1e-4);
  }
}

TEST_CASE("only the taps that were asked for are written") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const dump::Reader dump = run_golden(*set, set->checkpoint, {"--taps", "v,moe_out"});
  for (const dump::TensorName& tensor : dump::kLayerTensors) {
    CAPTURE(tensor.name);
    const bool expected = !tensor.is_tap || tensor.name == "v" || tensor.name == "moe_out";
    CHECK(dump.find("golden", dump::layer_path(1, tensor.name)).has_value() == expected);
  }
}

}  // namespace
}  // namespace kalibri::reference::test

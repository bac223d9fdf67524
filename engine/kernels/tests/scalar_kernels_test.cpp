// The definition itself: the scalar kernels against sums in f64, with bounds derived from the number of roundings, and
// the documented order against other orders, which must differ.
#include <cmath>
#include <limits>

#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using test::bits;
using test::Generator;
using test::scalar;
using test::uniform_vector;

constexpr double kEps = 0x1p-24;  // largest relative error of one rounding

/// |computed - exact| <= this for a dot product of n terms whose magnitudes add up to `magnitude`: a term passes
/// ceil(n / 32) roundings in its running sum and five in the tree.
double dot_bound(std::int64_t n, double magnitude) {
  const double roundings = static_cast<double>((n + 31) / 32 + 5);
  return roundings * kEps / (1 - roundings * kEps) * magnitude;
}

TEST_CASE("dot is within its derived bound of the sum in f64") {
  for (const std::int64_t n : {0, 1, 31, 32, 33, 127, 128, 129, 2560, 6144}) {
    Generator random(static_cast<std::uint64_t>(n));
    KALIBRI_SEED(random);
    const std::vector<float> a = uniform_vector(random, n);
    const std::vector<float> b = uniform_vector(random, n);
    double exact = 0;
    double magnitude = 0;
    for (std::size_t j = 0; j < a.size(); ++j) {
      const double product = static_cast<double>(a[j]) * static_cast<double>(b[j]);
      exact += product;
      magnitude += std::fabs(product);
    }
    const double error = std::fabs(static_cast<double>(scalar().dot(a.data(), b.data(), n)) - exact);
    CHECK(error <= dot_bound(n, magnitude));
  }
}

TEST_CASE("dot adds in the documented order, by hand") {
  // 1 in sum 0, then 2^-24 twice in sum 0: each is lost there (ties to even), but not when they meet in sum 1 first.
  std::vector<float> ones(96, 1.0F);
  std::vector<float> terms(96, 0.0F);
  terms[0] = 1.0F;
  terms[32] = terms[64] = 0x1p-24F;
  CHECK(scalar().dot(terms.data(), ones.data(), 96) == 1.0F);
  terms[32] = terms[64] = 0.0F;
  terms[1] = terms[33] = 0x1p-24F;
  CHECK(scalar().dot(terms.data(), ones.data(), 96) == 1.0F + 0x1p-23F);
  // In the tree 0 meets 16 before 8: the two halves of the last place meet only when they are 8 and 24.
  terms.assign(96, 0.0F);
  terms[0] = 1.0F;
  terms[16] = terms[8] = 0x1p-24F;
  CHECK(scalar().dot(terms.data(), ones.data(), 96) == 1.0F);
  terms[16] = 0.0F;
  terms[8] = terms[24] = 0x1p-24F;
  CHECK(scalar().dot(terms.data(), ones.data(), 96) == 1.0F + 0x1p-23F);
}

TEST_CASE("dot pads with +0, so that a sum that underflowed to -0 is +0 but in a full last step") {
  std::vector<float> a(64, 0.0F);
  std::vector<float> b(64, 0.0F);
  a[0] = -0x1p-100F;
  b[0] = 0x1p-100F;
  for (std::size_t j = 1; j < 32; ++j) a[j] = -0x1p-100F, b[j] = 0x1p-100F;
  CHECK(bits(scalar().dot(a.data(), b.data(), 32)) == 0x80000000U);
  CHECK(bits(scalar().dot(a.data(), b.data(), 33)) == 0);
}

TEST_CASE("rms_norm follows its formula and takes no weight for ones") {
  Generator random(3);
  KALIBRI_SEED(random);
  const std::int64_t n = 128;
  const std::vector<float> x = uniform_vector(random, n);
  const std::vector<float> weight = uniform_vector(random, n);
  double square = 0;
  for (const float value : x) square += static_cast<double>(value) * static_cast<double>(value);
  const double eps = static_cast<double>(1e-6F);
  std::vector<float> y(x.size());
  scalar().rms_norm(x.data(), weight.data(), 1e-6F, n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = static_cast<double>(x[i]) * static_cast<double>(weight[i]) / std::sqrt(square / 128 + eps);
    // The mean's error counts half under the root; then mean, sum, root, quotient and two products round.
    const double bound = (dot_bound(n, 1) / 2 + 6 * kEps) * std::fabs(exact);
    CHECK(std::fabs(static_cast<double>(y[i]) - exact) <= bound);
  }
  std::vector<float> without(x.size());
  std::vector<float> with_ones(x.size());
  const std::vector<float> ones(x.size(), 1.0F);
  scalar().rms_norm(x.data(), nullptr, 1e-6F, n, without.data());
  scalar().rms_norm(x.data(), ones.data(), 1e-6F, n, with_ones.data());
  CHECK(without == with_ones);
}

TEST_CASE("rope turns pairs of halves by the angle") {
  std::vector<float> x = {1, 0, 0, 2};
  const std::vector<float> cosine = {0, 0.6F};
  const std::vector<float> sine = {1, 0.8F};
  scalar().rope(x.data(), cosine.data(), sine.data(), 2);
  CHECK(x == std::vector<float>{0, -(2 * 0.8F), 1, 2 * 0.6F});
}

TEST_CASE("a product with FP8 weights takes the scale of the weight's own block") {
  // [130, 129] weights: two block rows, two block columns, the last ones partial. Ones everywhere, so a sum is a sum of
  // scales.
  const std::int64_t n_rows = 130;
  const std::int64_t n_cols = 129;
  const std::vector<std::uint8_t> codes(static_cast<std::size_t>(n_rows * n_cols), 0x38);  // 1.0
  const std::vector<float> scale_inv = {1, 2, 4, 8};
  const MatrixView w = {Format::e4m3_block, n_rows, n_cols, codes.data(), scale_inv.data()};
  const std::vector<float> x(static_cast<std::size_t>(n_cols), 1.0F);
  std::vector<float> packed(scalar().packed_size(1, n_cols));
  scalar().pack({x.data(), n_cols, 1, n_cols}, 0, 1, packed.data());
  std::vector<float> y(static_cast<std::size_t>(n_rows));
  scalar().matmul(w, 0, n_rows, packed.data(), 1, y.data(), n_rows, nullptr);
  for (std::size_t r = 0; r < y.size(); ++r) CHECK(y[r] == (r < 128 ? 128.0F * 1 + 2 : 128.0F * 4 + 8));
}

TEST_CASE("attention is softmax(q K' scale) V in f64, over one run of keys or two, within its bound") {
  Generator random(4);
  KALIBRI_SEED(random);
  const std::int64_t head_dim = 64;
  const std::int64_t n_keys = 37;
  const std::vector<float> query = uniform_vector(random, head_dim);
  const std::vector<float> keys = uniform_vector(random, n_keys * head_dim);
  const std::vector<float> values = uniform_vector(random, n_keys * head_dim);
  std::vector<double> p(static_cast<std::size_t>(n_keys));
  double denominator = 0;
  double score_error = 0;  // largest error of a score, and so relative error of an exponential
  for (std::size_t i = 0; i < p.size(); ++i) {
    double score = 0;
    double magnitude = 0;
    for (std::size_t d = 0; d < query.size(); ++d) {
      const double product = static_cast<double>(query[d]) * static_cast<double>(keys[i * query.size() + d]);
      score += product;
      magnitude += std::fabs(product);
    }
    p[i] = std::exp(score * 0.125);
    denominator += p[i];
    score_error = std::max(score_error, (dot_bound(head_dim, magnitude) + 2 * kEps * magnitude) * 0.125);
  }
  std::vector<float> scores(p.size());
  std::vector<float> out(query.size());
  std::vector<float> wrapped(query.size());
  const KeyRun whole = {keys.data(), values.data(), n_keys};
  AttentionHeads head{.queries = query.data(),
                      .runs = &whole,
                      .n_runs = 1,
                      .row_stride = head_dim,
                      .head_dim = head_dim,
                      .scale = 0.125F,
                      .scores = scores.data(),
                      .out = out.data()};
  scalar().attention(head);
  for (std::size_t d = 0; d < query.size(); ++d) {
    double exact = 0;
    double magnitude = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double term = p[i] / denominator * static_cast<double>(values[i * query.size() + d]);
      exact += term;
      magnitude += std::fabs(term);
    }
    // Numerator and denominator each inherit the exponentials' error (score and one ulp); then n + 1 and 7 roundings.
    const double bound = (2 * (2 * score_error + 2 * kEps) + (static_cast<double>(n_keys) + 8) * kEps) * magnitude;
    CHECK(std::fabs(static_cast<double>(out[d]) - exact) <= bound);
  }
  const std::int64_t first_run = 14;
  const KeyRun wrapped_runs[] = {
      {keys.data(), values.data(), first_run},
      {keys.data() + first_run * head_dim, values.data() + first_run * head_dim, n_keys - first_run}};
  head.runs = wrapped_runs;
  head.n_runs = 2;
  head.out = wrapped.data();
  scalar().attention(head);
  CHECK(wrapped == out);
}

}  // namespace
}  // namespace kalibri::kernels

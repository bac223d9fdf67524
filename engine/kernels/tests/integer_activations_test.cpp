// Products with activations that are rounded to integers: every table against the scalar definition, the definition
// against what it says, and controls.
#include <limits>

#include "engine/kernels/affine_codec.hpp"
#include "engine/kernels/tests/weights.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

std::vector<float> product(const KernelTable& table, const MatrixView& w, const Activations& x, std::int32_t max_code,
                           std::int64_t row_cut) {
  const std::int64_t y_stride = w.n_rows + 3;
  const Guarded<unsigned char> packed(static_cast<std::int64_t>(table.packed_integers_size(w, x.n_tokens)));
  const Guarded<float> y((x.n_tokens - 1) * y_stride + w.n_rows, 1);
  const std::int64_t middle = x.n_tokens / 2;
  table.pack_integers(w, x, max_code, middle, x.n_tokens, packed.data());
  table.pack_integers(w, x, max_code, 0, middle, packed.data());
  table.matmul_integers(w, row_cut, w.n_rows, packed.data(), x.n_tokens, y.data(), y_stride);
  table.matmul_integers(w, 0, row_cut, packed.data(), x.n_tokens, y.data(), y_stride);
  CHECK(packed.surroundings_intact());
  CHECK(y.surroundings_intact());
  std::vector<float> result;
  for (std::int64_t t = 0; t < x.n_tokens; ++t) {
    result.insert(result.end(), y.data() + t * y_stride, y.data() + t * y_stride + w.n_rows);
  }
  return result;
}

void check_product(const MatrixView& w, const Activations& x, std::int32_t max_code, std::int64_t row_cut) {
  const std::vector<float> expected = product(scalar(), w, x, max_code, 0);
  for (const KernelTable* table : tables_under_test()) {
    INFO(table->isa << ", " << w.bits << " bits, groups of " << w.group_size << ", " << x.n_tokens << " tokens, "
                    << w.n_rows << " rows, " << w.n_cols << " columns");
    CHECK(same_bits(product(*table, w, x, max_code, row_cut), expected));
  }
}

TEST_CASE("a product with integer activations has the scalar bits for any format, shape and split") {
  for (const Kind& kind : all_affine_kinds()) {
    Generator random(static_cast<std::uint64_t>(kind.bits * kind.group_size));
    KALIBRI_SEED(random);
    for (const std::int64_t n_groups : {1, 8, 9, 17, 33}) {
      const std::int64_t n_cols = n_groups * kind.group_size;
      for (const std::int64_t n_rows : {1, 5, 17}) {
        const Weights weights = random_weights(random, kind, n_rows, n_cols, random.below(64));
        for (const std::int64_t n_tokens : {1, 2, 5, 6, 12, 33}) {
          const std::int64_t stride = n_cols + random.below(5);
          const Guarded<float> x(uniform_vector(random, (n_tokens - 1) * stride + n_cols), random.below(16));
          check_product(weights.view, {x.data(), stride, n_tokens, n_cols}, n_tokens % 2 == 0 ? 127 : 32767,
                        random.below(n_rows + 1));
        }
      }
    }
  }
}

TEST_CASE("a product with integer activations has the scalar bits at the model's widths") {
  for (const std::int32_t n_bits : {4, 8}) {
    const Kind kind{Format::affine, n_bits, 64, Format::bf16};
    Generator random(9);
    KALIBRI_SEED(random);
    const Weights weights = random_weights(random, kind, 37, 6144, 0);
    const Guarded<float> x(uniform_vector(random, 513 * 6144), 0);
    for (const std::int64_t n_tokens : {1, 513})
      check_product(weights.view, {x.data(), 6144, n_tokens, 6144}, 32767, 9);
  }
}

TEST_CASE("zeros, extremes and what is not finite have the scalar bits as integer activations") {
  for (const Kind& kind : all_affine_kinds()) {
    Generator random(10);
    KALIBRI_SEED(random);
    const std::int64_t n_cols = 3 * kind.group_size;
    const Weights weights = random_weights(random, kind, 3, n_cols, 0);
    for (int round = 0; round < 12; ++round) {
      std::vector<float> x = uniform_vector(random, 2 * n_cols);
      for (float& value : x) {
        if (round < 3) value = std::copysign(round == 0 ? 0.0F : round == 1 ? 0x1p-149F : 0x1p-130F, value);
        if (round == 3) value *= std::numeric_limits<float>::max();
        if (round > 3 && random.below(200) == 0) value = random.any();
      }
      if (round == 4) x[1] = std::numeric_limits<float>::quiet_NaN();
      if (round == 5) x[1] = -std::numeric_limits<float>::infinity();
      check_product(weights.view, {x.data(), n_cols, 2, n_cols}, 32767, 1);
      check_product(weights.view, {x.data(), n_cols, 1, n_cols}, 127, 1);
      if (round == 4 || round == 5) {
        CHECK(std::isnan(product(scalar(), weights.view, {x.data(), n_cols, 1, n_cols}, 127, 0)[0]));
      }
    }
  }
}

TEST_CASE("a sum of -0 stays -0 beside groups that are not there") {
  const Kind kind{Format::affine, 8, 32, Format::f32};
  const std::int64_t n_groups = 33;  // one more than sums, and no whole number of vectors
  const std::int64_t n_cols = n_groups * kind.group_size;
  const std::vector<unsigned char> codes(static_cast<std::size_t>(n_cols), 0);
  const std::vector<float> scales(static_cast<std::size_t>(n_groups), 1.0F);
  const std::vector<float> biases(static_cast<std::size_t>(n_groups), 0x1p-100F);
  const Weights weights(kind, 1, n_cols, codes, float_bytes(scales, Format::f32), float_bytes(biases, Format::f32), 0);
  // bias * fl(S * a) = -2^-200, which rounds to -0.
  const std::vector<float> x(static_cast<std::size_t>(6 * n_cols), -0x1p-100F);
  CHECK(bits(product(scalar(), weights.view, {x.data(), n_cols, 1, n_cols}, 127, 0)[0]) == bits(-0.0F));
  for (const std::int64_t n_tokens : {1, 6}) check_product(weights.view, {x.data(), n_cols, n_tokens, n_cols}, 127, 0);
}

/// Weights of one group of 32: codes that rise from 0, scale 2 and bias -3.
Weights rising_codes() {
  std::vector<unsigned char> codes;
  for (unsigned char code = 0; code < 32; ++code) codes.push_back(code);
  const Kind kind{Format::affine, 8, 32, Format::f32};
  return {kind, 1, 32, codes, float_bytes({2.0F}, Format::f32), float_bytes({-3.0F}, Format::f32), 0};
}

TEST_CASE("integer activations by hand: the scale, ties to even, the code sum and the two terms") {
  // max |x| = 127 makes a = 1 for max_code 127: 0.5 and 2.5 are ties, which go to 0 and 2; 1.5 goes to 2.
  std::vector<float> x(32, 0.0F);
  x[1] = 0.5F;
  x[2] = 1.5F;
  x[3] = 2.5F;
  x[4] = -127.0F;
  const Weights weights = rising_codes();
  // I = 2 * 2 + 3 * 2 - 4 * 127, S = 2 + 2 - 127: 2 I - 3 S.
  const float expected = 2.0F * (4 + 6 - 508) - 3.0F * (4 - 127);
  CHECK(product(scalar(), weights.view, {x.data(), 32, 1, 32}, 127, 0)[0] == expected);
  // As int16 the ties vanish: nearly the exact product, 2 x I - 3 x S of the values themselves.
  const float exact = 2.0F * (0.5F + 3 + 7.5F - 508) - 3.0F * (0.5F + 1.5F + 2.5F - 127);
  const float fine = product(scalar(), weights.view, {x.data(), 32, 1, 32}, 32767, 0)[0];
  const float a = 127.0F / 32767;  // each activation is off by at most a / 2, each weight at most 59 wide
  CHECK(std::fabs(fine - exact) <= 32 * 59 * a / 2);
  CHECK(fine != expected);
}

TEST_CASE("the comparison of integer products sees one code, one activation step, another group and an order") {
  Generator random(11);
  KALIBRI_SEED(random);
  for (const Kind& kind : all_affine_kinds()) {
    const std::int64_t n_cols = 40 * kind.group_size;
    const Weights weights = random_weights(random, kind, 20, n_cols, 0);
    std::vector<float> x = positive_vector(random, n_cols);
    const Activations activations{x.data(), n_cols, 1, n_cols};
    const std::vector<float> right = product(scalar(), weights.view, activations, 32767, 0);
    weights.data.data()[5] ^= 0x10;
    CHECK(!same_bits(product(scalar(), weights.view, activations, 32767, 0), right));
    weights.data.data()[5] ^= 0x10;
    CHECK(!same_bits(product(scalar(), weights.view, activations, 32766, 0), right));
    std::swap_ranges(x.begin(), x.begin() + kind.group_size, x.begin() + kind.group_size);
    CHECK(!same_bits(product(scalar(), weights.view, activations, 32767, 0), right));
  }
}

}  // namespace
}  // namespace kalibri::kernels

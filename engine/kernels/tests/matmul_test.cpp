// Products: every table against the scalar definition, on bits, for every format, shape, split and alignment; and the
// controls that show the comparison would see another order, scale or weight.
#include "engine/kernels/scalar_math.hpp"
#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

/// Stored weights with their scales, in guarded memory.
struct Weights {
  Weights(Format format, std::int64_t n_rows, std::int64_t n_cols, const std::vector<unsigned char>& bytes,
          const std::vector<float>& scales, std::int64_t gap)
      : data(bytes, gap), scale_inv(scales, 0), view{format, n_rows, n_cols, data.data(), scale_inv.data()} {}
  Guarded<unsigned char> data;
  Guarded<float> scale_inv;
  MatrixView view;
};

std::int64_t n_blocks(std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

std::vector<float> positive_vector(Generator& random, std::int64_t n) {
  std::vector<float> values = uniform_vector(random, n);
  for (float& value : values) value = std::fabs(value);
  return values;
}

std::vector<unsigned char> random_weight_bytes(Generator& random, Format format, std::int64_t n) {
  std::vector<unsigned char> bytes;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = bits(random.uniform());
    const auto code = static_cast<unsigned char>(random.next());
    const int n_bytes = format == Format::f32 ? 4 : format == Format::bf16 ? 2 : 0;
    for (int k = 4 - n_bytes; k < 4; ++k) bytes.push_back(static_cast<unsigned char>(value >> 8 * k));
    if (n_bytes == 0) bytes.push_back((code & 0x7f) == 0x7f ? 0x01 : code);
  }
  return bytes;
}

Weights random_weights(Generator& random, Format format, std::int64_t n_rows, std::int64_t n_cols, std::int64_t gap) {
  const std::vector<float> scales = positive_vector(random, n_blocks(n_rows) * n_blocks(n_cols));
  return {format, n_rows, n_cols, random_weight_bytes(random, format, n_rows * n_cols), scales, gap};
}

/// All rows, in pieces that end at `cuts`; tokens are packed in pieces too. Checks that nothing else was written.
std::vector<float> product(const KernelTable& table, const MatrixView& w, const Activations& x,
                           const std::vector<std::int64_t>& cuts) {
  const std::int64_t y_stride = w.n_rows + 3;
  const Guarded<float> packed(static_cast<std::int64_t>(table.packed_size(x.n_tokens, x.n_cols)));
  const Guarded<float> scratch(static_cast<std::int64_t>(table.matmul_scratch(w, x.n_tokens)));
  const Guarded<float> y((x.n_tokens - 1) * y_stride + w.n_rows, 1);
  const float untouched = y.data()[0];
  const std::int64_t middle = x.n_tokens / 2 / kTokenTile * kTokenTile;
  table.pack(x, middle, x.n_tokens, packed.data());
  table.pack(x, 0, middle, packed.data());
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    table.matmul(w, begin, end, packed.data(), x.n_tokens, y.data(), y_stride, scratch.data());
    begin = end;
  }
  table.matmul(w, begin, w.n_rows, packed.data(), x.n_tokens, y.data(), y_stride, scratch.data());
  CHECK(packed.surroundings_intact());
  CHECK(scratch.surroundings_intact());
  CHECK(y.surroundings_intact());
  std::vector<float> result;
  for (std::int64_t t = 0; t < x.n_tokens; ++t) {
    const float* row = y.data() + t * y_stride;
    result.insert(result.end(), row, row + w.n_rows);
    for (std::int64_t r = w.n_rows; r < y_stride && t + 1 < x.n_tokens; ++r) CHECK(bits(row[r]) == bits(untouched));
  }
  return result;
}

void check_product(const MatrixView& w, const Activations& x, const std::vector<std::int64_t>& cuts) {
  const std::vector<float> expected = product(scalar(), w, x, {});
  for (const KernelTable* table : tables_under_test()) {
    INFO(table->isa << ", format " << static_cast<int>(w.format) << ", " << x.n_tokens << " tokens, " << w.n_rows
                    << " rows, " << w.n_cols << " columns");
    CHECK(same_bits(product(*table, w, x, cuts), expected));
  }
}

constexpr Format kFormats[] = {Format::f32, Format::bf16, Format::e4m3_block};

TEST_CASE("a product has the scalar bits for any shape, split of rows and alignment") {
  for (const Format format : kFormats) {
    for (const std::int64_t n_cols : {1, 31, 32, 33, 96, 127, 128, 129, 290}) {
      Generator random(static_cast<std::uint64_t>(n_cols));
      KALIBRI_SEED(random);
      for (const std::int64_t n_rows : {1, 2, 7, 65, 131, 259}) {
        const Weights weights = random_weights(random, format, n_rows, n_cols, random.below(64));
        for (const std::int64_t n_tokens : {1, 2, 7, 8, 9}) {
          const std::int64_t stride = n_cols + random.below(5);
          const Guarded<float> x(uniform_vector(random, (n_tokens - 1) * stride + n_cols), random.below(16));
          const std::int64_t cut = random.below(n_rows + 1);
          check_product(weights.view, {x.data(), stride, n_tokens, n_cols},
                        {cut, cut + random.below(n_rows - cut + 1)});
        }
      }
    }
  }
}

TEST_CASE("a product has the scalar bits for many tokens, past a block of them") {
  for (const Format format : kFormats) {
    for (const std::int64_t n_tokens : {33, 127, 129, 513}) {
      Generator random(static_cast<std::uint64_t>(n_tokens));
      KALIBRI_SEED(random);
      const Weights weights = random_weights(random, format, 53, 161, 0);
      const Guarded<float> x(uniform_vector(random, n_tokens * 161), 0);
      check_product(weights.view, {x.data(), 161, n_tokens, 161}, {50});
    }
  }
}

TEST_CASE("a product has the scalar bits at the model's widths") {
  for (const Format format : kFormats) {
    Generator random(static_cast<std::uint64_t>(format));
    KALIBRI_SEED(random);
    const Weights weights = random_weights(random, format, 100, 6144, 0);
    const Guarded<float> x(uniform_vector(random, 5 * 6144), 0);
    check_product(weights.view, {x.data(), 6144, 1, 6144}, {});
    check_product(weights.view, {x.data(), 6144, 5, 6144}, {33});
    const MatrixView narrow = {format, 100, 2590, weights.view.data, weights.view.scale_inv};
    check_product(narrow, {x.data(), 2590, 8, 2590}, {7});
  }
}

TEST_CASE("all 254 FP8 codes that are numbers have the scalar bits, in every column of a step") {
  Generator random(5);
  KALIBRI_SEED(random);
  std::vector<unsigned char> codes;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<unsigned char>(code));
  }
  const auto n_cols = static_cast<std::int64_t>(codes.size());
  std::vector<unsigned char> rows;
  for (std::size_t shift = 0; shift < 32; ++shift) {
    for (std::size_t j = 0; j < codes.size(); ++j) rows.push_back(codes[(j + shift) % codes.size()]);
  }
  const Weights weights(Format::e4m3_block, 32, n_cols, rows, positive_vector(random, 2), 1);
  for (const std::int64_t n_tokens : {1, 3}) {
    const Guarded<float> x(uniform_vector(random, n_tokens * n_cols), 0);
    check_product(weights.view, {x.data(), n_cols, n_tokens, n_cols}, {});
  }
  // One column at a time: the product is the weight itself, so a wrong code cannot hide in a sum.
  std::vector<float> one(codes.size(), 0.0F);
  const Weights plain(Format::e4m3_block, 1, n_cols, codes, {1.0F, 1.0F}, 0);
  for (const KernelTable* table : tables_under_test()) {
    for (std::size_t j = 0; j < codes.size(); ++j) {
      one[j] = 1.0F;
      CHECK(product(*table, plain.view, {one.data(), n_cols, 1, n_cols}, {})[0] == e4m3_to_f32(codes[j]));
      one[j] = 0.0F;
    }
  }
}

TEST_CASE("zeros, subnormals, infinities and extremes have the scalar bits") {
  for (const Format format : kFormats) {
    Generator random(6);
    KALIBRI_SEED(random);
    for (int round = 0; round < 20; ++round) {
      const std::int64_t n_cols = 1 + random.below(70);
      // A quarter of the columns of each operand is arbitrary; the rest must not drown in the infinities they give.
      std::vector<float> x = uniform_vector(random, 5 * n_cols);
      for (float& value : x) {
        value = random.below(4) == 0 ? random.any() : value * 0x1p-70F;
        if (format == Format::e4m3_block && std::isfinite(value) && std::fabs(value) >= 0x1p97F) value *= 0x1p-31F;
      }
      std::vector<unsigned char> bytes = random_weight_bytes(random, format, 9 * n_cols);
      if (format == Format::bf16) {
        for (std::int64_t i = 0; i < 9 * n_cols; i += 4) {
          const std::uint16_t value = f32_to_bf16(random.any());
          std::memcpy(bytes.data() + 2 * i, &value, 2);
        }
      }
      const std::vector<float> scales = {0x1p-60F};
      const Weights weights(format, 9, n_cols, bytes, scales, 0);
      check_product(weights.view, {x.data(), n_cols, 5, n_cols}, {});
      check_product(weights.view, {x.data(), n_cols, 1, n_cols}, {});
      for (float& value : x) value = random.below(2) == 0 ? -0.0F : std::copysign(0x1p-140F, value);
      check_product(weights.view, {x.data(), n_cols, 5, n_cols}, {});
    }
  }
}

TEST_CASE("the comparison of products sees another order, a neighbour's scale and one bit of a weight") {
  Generator random(7);
  KALIBRI_SEED(random);
  const std::int64_t n_cols = 290;
  std::vector<float> x = uniform_vector(random, n_cols);
  const std::vector<unsigned char> bytes = random_weight_bytes(random, Format::e4m3_block, 130 * n_cols);
  const std::vector<float> scales = positive_vector(random, 2 * 3);
  const Weights weights(Format::e4m3_block, 130, n_cols, bytes, scales, 0);
  const Activations activations{x.data(), n_cols, 1, n_cols};
  const std::vector<float> right = product(scalar(), weights.view, activations, {});

  std::vector<float> wrong_scales = scales;
  std::swap(wrong_scales[4], wrong_scales[5]);
  const Weights wrong_scale(Format::e4m3_block, 130, n_cols, bytes, wrong_scales, 0);
  CHECK(!same_bits(product(scalar(), wrong_scale.view, activations, {}), right));

  std::vector<unsigned char> wrong_bytes = bytes;
  wrong_bytes[3] ^= 1;
  const Weights wrong_weight(Format::e4m3_block, 130, n_cols, wrong_bytes, scales, 0);
  CHECK(!same_bits(product(scalar(), wrong_weight.view, activations, {}), right));

  // Columns in another order, weights and activations alike: 20 sums that differ by their rounding alone.
  const Weights f32 = random_weights(random, Format::f32, 20, n_cols, 0);
  std::vector<unsigned char> reversed_bytes = f32.data.values();
  auto* reversed_rows = reinterpret_cast<float*>(reversed_bytes.data());
  for (std::int64_t r = 0; r < 20; ++r) std::reverse(reversed_rows + r * n_cols, reversed_rows + (r + 1) * n_cols);
  const Weights reversed(Format::f32, 20, n_cols, reversed_bytes, {}, 0);
  const std::vector<float> in_order = product(scalar(), f32.view, activations, {});
  std::reverse(x.begin(), x.end());
  CHECK(!same_bits(product(scalar(), reversed.view, activations, {}), in_order));
}

}  // namespace
}  // namespace kalibri::kernels

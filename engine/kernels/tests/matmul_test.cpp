// Products: every table against the scalar definition, on bits, for every format, shape, split and alignment; and the
// controls that show the comparison would see another order, scale or weight.
#include <utility>

#include "engine/kernels/affine_codec.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "engine/kernels/tests/weights.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

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

TEST_CASE("a product has the scalar bits for any shape, split of rows and alignment") {
  for (const Kind& kind : kKinds) {
    std::int64_t before = 0;
    for (const std::int64_t wanted : {1, 31, 32, 33, 96, 127, 128, 129, 290}) {
      const std::int64_t n_cols = kind.n_cols_from(wanted);
      if (std::exchange(before, n_cols) == n_cols) continue;
      Generator random(static_cast<std::uint64_t>(n_cols));
      KALIBRI_SEED(random);
      for (const std::int64_t n_rows : {1, 2, 7, 65, 131, 259}) {
        const Weights weights = random_weights(random, kind, n_rows, n_cols, random.below(64));
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
  for (const Kind& kind : kKinds) {
    const std::int64_t n_cols = kind.n_cols_from(161);
    for (const std::int64_t n_tokens : {33, 127, 129, 513}) {
      Generator random(static_cast<std::uint64_t>(n_tokens));
      KALIBRI_SEED(random);
      const Weights weights = random_weights(random, kind, 53, n_cols, 0);
      const Guarded<float> x(uniform_vector(random, n_tokens * n_cols), 0);
      check_product(weights.view, {x.data(), n_cols, n_tokens, n_cols}, {50});
    }
  }
}

TEST_CASE("a product has the scalar bits at the model's widths") {
  for (const Kind& kind : kKinds) {
    Generator random(static_cast<std::uint64_t>(kind.format) + static_cast<std::uint64_t>(kind.bits));
    KALIBRI_SEED(random);
    const Weights weights = random_weights(random, kind, 100, 6144, 0);
    const Guarded<float> x(uniform_vector(random, 5 * 6144), 0);
    check_product(weights.view, {x.data(), 6144, 1, 6144}, {});
    check_product(weights.view, {x.data(), 6144, 5, 6144}, {33});
    MatrixView narrow = weights.view;
    narrow.n_cols = kind.n_cols_from(2590);
    check_product(narrow, {x.data(), narrow.n_cols, 8, narrow.n_cols}, {7});
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

/// Bit `index` of a stream whose bytes begin with their least significant bit.
unsigned bit_of(const std::vector<unsigned char>& bytes, std::size_t index) {
  return unsigned{bytes[index / 8]} >> index % 8 & 1U;
}

TEST_CASE("every affine format has the scalar bits, and each code in each column its own weight") {
  for (const Kind& kind : all_affine_kinds()) {
    Generator random(static_cast<std::uint64_t>(kind.bits * kind.group_size));
    KALIBRI_SEED(random);
    const std::int64_t n_rows = 9;
    const std::int64_t n_cols = 2 * kind.group_size;
    const Weights weights = random_weights(random, kind, n_rows, n_cols, random.below(7));
    for (const std::int64_t n_tokens : {1, 5, 40}) {
      const Guarded<float> x(uniform_vector(random, n_tokens * n_cols), 0);
      check_product(weights.view, {x.data(), n_cols, n_tokens, n_cols}, {4});
    }
    // One column at a time: the product is the weight itself.
    const std::vector<unsigned char> codes = weights.data.values();
    const std::vector<unsigned char> scales = weights.grid_scales.values();
    const std::vector<unsigned char> biases = weights.grid_biases.values();
    const auto grid_value = [&](const std::vector<unsigned char>& values, std::size_t group) {
      std::uint32_t pattern = 0;
      if (kind.grid_format == Format::f32) {
        std::memcpy(&pattern, values.data() + 4 * group, 4);
      } else {
        pattern = std::uint32_t{values[2 * group]} << 16 | std::uint32_t{values[2 * group + 1]} << 24;
      }
      return std::bit_cast<float>(pattern);
    };
    std::vector<KernelTable const*> tables = tables_under_test();
    tables.push_back(&scalar());
    for (std::size_t j = 0; j < static_cast<std::size_t>(n_cols); ++j) {
      std::vector<float> one(static_cast<std::size_t>(n_cols), 0.0F);
      one[j] = 1.0F;
      std::vector<float> expected;
      for (std::size_t row = 0; row < static_cast<std::size_t>(n_rows); ++row) {
        const std::size_t at = row * static_cast<std::size_t>(n_cols) + j;
        unsigned code = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(kind.bits); ++k) {
          code |= bit_of(codes, at * static_cast<std::size_t>(kind.bits) + k) << k;
        }
        const std::size_t group = at / static_cast<std::size_t>(kind.group_size);
        expected.push_back(std::fma(static_cast<float>(code), grid_value(scales, group), grid_value(biases, group)));
      }
      for (const KernelTable* table : tables) {
        INFO(table->isa << ", " << kind.bits << " bits, groups of " << kind.group_size << ", column " << j);
        REQUIRE(same_bits(product(*table, weights.view, {one.data(), n_cols, 1, n_cols}, {}), expected));
      }
    }
  }
}

TEST_CASE("zeros, subnormals, infinities and extremes have the scalar bits") {
  for (const Format format : {Format::f32, Format::bf16, Format::e4m3_block}) {
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

TEST_CASE("affine products of extreme grids and activations have the scalar bits") {
  for (const Kind& kind : all_affine_kinds()) {
    Generator random(static_cast<std::uint64_t>(kind.bits + kind.group_size));
    KALIBRI_SEED(random);
    const std::int64_t n_cols = 2 * kind.group_size;
    std::vector<float> scales = any_vector(random, 9 * 2);
    std::vector<float> biases = any_vector(random, 9 * 2);
    for (auto* grid : {&scales, &biases}) {
      for (float& value : *grid) value = std::isfinite(value) ? value : -0.0F;
    }
    const Weights weights(kind, 9, n_cols, random_bytes(random, 9 * n_cols * kind.bits / 8),
                          float_bytes(scales, kind.grid_format), float_bytes(biases, kind.grid_format), 1);
    std::vector<float> x = uniform_vector(random, 5 * n_cols);
    for (float& value : x) value = random.below(4) == 0 ? random.any() : value * 0x1p-70F;
    check_product(weights.view, {x.data(), n_cols, 5, n_cols}, {});
    for (float& value : x) value = random.below(2) == 0 ? -0.0F : std::copysign(0x1p-140F, value);
    check_product(weights.view, {x.data(), n_cols, 1, n_cols}, {});
  }
}

TEST_CASE("affine scales at the edge of the subnormal numbers have the scalar bits, in every column") {
  for (const Kind& kind : all_affine_kinds()) {
    if (kind.grid_format != Format::f32) continue;  // a bf16 grid has no bits to lose there
    const std::int64_t n_cols = kind.group_size;
    const std::vector<float> scales = {0x1.000002p-124F, -0x1.fffffep-123F, 0x1.000004p-127F};
    const Weights weights(kind, 3, n_cols,
                          std::vector<unsigned char>(static_cast<std::size_t>(3 * n_cols * kind.bits / 8), 0xff),
                          float_bytes(scales, kind.grid_format), float_bytes({0, 0, 0}, kind.grid_format), 1);
    for (std::int64_t j = 0; j < n_cols; ++j) {
      std::vector<float> one(static_cast<std::size_t>(n_cols), 0.0F);
      one[static_cast<std::size_t>(j)] = 1.0F;
      check_product(weights.view, {one.data(), n_cols, 1, n_cols}, {});
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
  const Weights f32 = random_weights(random, {Format::f32}, 20, n_cols, 0);
  std::vector<unsigned char> reversed_bytes = f32.data.values();
  auto* reversed_rows = reinterpret_cast<float*>(reversed_bytes.data());
  for (std::int64_t r = 0; r < 20; ++r) std::reverse(reversed_rows + r * n_cols, reversed_rows + (r + 1) * n_cols);
  const Weights reversed(Format::f32, 20, n_cols, reversed_bytes, {}, 0);
  const std::vector<float> in_order = product(scalar(), f32.view, activations, {});
  std::reverse(x.begin(), x.end());
  CHECK(!same_bits(product(scalar(), reversed.view, activations, {}), in_order));
}

TEST_CASE("the comparison of products sees a code's bit, another group's grid and a product that is rounded first") {
  Generator random(8);
  KALIBRI_SEED(random);
  for (const Kind& kind : all_affine_kinds()) {
    const std::int64_t n_cols = 2 * kind.group_size;
    const std::vector<float> x = positive_vector(random, n_cols);
    const Activations activations{x.data(), n_cols, 1, n_cols};
    const Weights weights = random_weights(random, kind, 20, n_cols, 0);
    const std::vector<float> right = product(scalar(), weights.view, activations, {});

    weights.data.data()[5] ^= 0x10;
    CHECK(!same_bits(product(scalar(), weights.view, activations, {}), right));
    weights.data.data()[5] ^= 0x10;
    CHECK(same_bits(product(scalar(), weights.view, activations, {}), right));

    const std::size_t grid_bytes = kind.grid_format == Format::f32 ? 4 : 2;
    unsigned char* bias = weights.grid_biases.data();
    std::swap_ranges(bias, bias + grid_bytes, bias + grid_bytes);
    CHECK(!same_bits(product(scalar(), weights.view, activations, {}), right));
    std::swap_ranges(bias, bias + grid_bytes, bias + grid_bytes);

    // scale * sum(code x) + bias * sum(x), which others compute: another rounding.
    std::vector<float> factored;
    for (std::int64_t row = 0; row < 20; ++row) {
      float total = 0;
      for (std::int64_t group = 0; group < 2; ++group) {
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(kind.group_size));
        unpack_codes(weights.data.data() + (row * 2 + group) * kind.group_size * kind.bits / 8, kind.group_size,
                     kind.bits, codes.data());
        float with_codes = 0;
        float alone = 0;
        for (std::int64_t i = 0; i < kind.group_size; ++i) {
          const float value = x[static_cast<std::size_t>(group * kind.group_size + i)];
          with_codes = std::fma(static_cast<float>(codes[static_cast<std::size_t>(i)]), value, with_codes);
          alone += value;
        }
        const AffineGrid grid = stored_grid(weights.view, row, group);
        total += grid.scale * with_codes + grid.bias * alone;
      }
      factored.push_back(total);
    }
    CHECK(!same_bits(factored, right));
  }
}

}  // namespace
}  // namespace kalibri::kernels

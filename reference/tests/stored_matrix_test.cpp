// Decoding of stored numbers, against their definitions.
#include "reference/stored_matrix.hpp"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"
#include "reference/number_formats.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr std::int64_t kRows = 320;  // 3 blocks, the last one half
constexpr std::int64_t kCols = 192;  // 2 blocks, the last one half

std::uint8_t code_at(std::int64_t i, std::int64_t j) {
  const auto code = static_cast<std::uint8_t>(i * 7 + j * 3);
  return (code & 0x7f) == 0x7f ? code & 0x80 : code;
}

float scale_at(std::int64_t block_row, std::int64_t block_col) {
  return 0.3F * static_cast<float>(1 + block_row * 2 + block_col * 5);
}

/// A checkpoint with FP8 matrix "m.weight" [320, 192] and f32 vector "v".
class Fp8Checkpoint {
 public:
  explicit Fp8Checkpoint(const std::vector<std::int64_t>& scale_shape = {3, 2}) {
    fixtures::write_file(folder_.path() / "config.json", "{}");
    const std::vector<fixtures::TensorDeclaration> tensors{
        {"m.weight", "F8_E4M3", {kRows, kCols}}, {"m.weight_scale_inv", "F32", scale_shape}, {"v", "F32", {2}}};
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kCols; ++j) codes.push_back(static_cast<std::byte>(code_at(i, j)));
    }
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < 2; ++j) scales.push_back(scale_at(i, j));
    }
    declarations_ = tensors;
  }
  [[nodiscard]] Checkpoint write() const {
    fixtures::SafetensorsWriter writer(folder_.path() / "model.safetensors", declarations_);
    writer.write(codes);
    writer.write(std::as_bytes(std::span(scales)));
    const std::array v{1.5F, -2.0F};
    writer.write(std::as_bytes(std::span(v)));
    writer.close();
    return Checkpoint(folder_.path());
  }

  std::vector<std::byte> codes;
  std::vector<float> scales;

 private:
  fixtures::TempDirectory folder_;
  std::vector<fixtures::TensorDeclaration> declarations_;
};

TEST_CASE("an FP8 matrix with partial edge blocks is its codes times their blocks' scales") {
  const Fp8Checkpoint source;
  const Checkpoint checkpoint = source.write();
  const StoredMatrix matrix = find_matrix(checkpoint, "m.weight", kRows, kCols);
  std::vector<float> f32(static_cast<std::size_t>(kRows * kCols));
  std::vector<double> f64(f32.size());
  decode_rows(matrix, 0, kRows, f32.data());
  decode_rows(matrix, 0, kRows, f64.data());
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kCols; ++j) {
      const float expected = decode_e4m3(code_at(i, j)) * scale_at(i / 128, j / 128);
      REQUIRE(f32[static_cast<std::size_t>(i * kCols + j)] == expected);
      REQUIRE(f64[static_cast<std::size_t>(i * kCols + j)] == static_cast<double>(expected));
    }
  }
  std::vector<float> some(2 * kCols);
  decode_rows(matrix, 127, 2, some.data());  // across a block's edge
  CHECK(std::equal(some.begin(), some.end(), f32.begin() + 127 * kCols));
  CHECK_THROWS_AS(decode_rows(matrix, kRows - 1, 2, some.data()), InternalError);
}

TEST_CASE("an FP8 NaN code is refused where it lies, a scale that is no number when the matrix is found") {
  Fp8Checkpoint source;
  source.codes[static_cast<std::size_t>(200 * kCols + 130)] = std::byte{0xff};
  const Checkpoint checkpoint = source.write();
  const StoredMatrix matrix = find_matrix(checkpoint, "m.weight", kRows, kCols);
  std::vector<float> rows(static_cast<std::size_t>(kRows * kCols));
  CHECK_NOTHROW(decode_rows(matrix, 0, 200, rows.data()));
  CHECK_THROWS_WITH(decode_rows(matrix, 200, 1, rows.data()),
                    ContainsSubstring("m.weight: row 200, columns 128 to 191"));
  CHECK_NOTHROW(decode_rows(matrix, 201, kRows - 201, rows.data()));
  source.scales[4] = INFINITY;
  const Checkpoint damaged = source.write();
  CHECK_THROWS_WITH(find_matrix(damaged, "m.weight", kRows, kCols),
                    ContainsSubstring("m.weight_scale_inv: the scale of block (2, 0) is inf"));
}

TEST_CASE("a tensor of another shape, without its scales or of a dtype that is no number here is refused") {
  const Fp8Checkpoint source;
  const Checkpoint checkpoint = source.write();
  CHECK_THROWS_WITH(find_matrix(checkpoint, "m.weight", kRows, kRows), ContainsSubstring("m.weight: shape [320, 192]"));
  CHECK_THROWS_WITH(find_matrix(checkpoint, "n.weight", 1, 1), ContainsSubstring("n.weight: missing"));
  CHECK_THROWS_WITH(find_matrix(checkpoint, "v", 2, 1), ContainsSubstring("v: shape [2], expected [2, 1]"));
  CHECK_THROWS_WITH(find_vector(checkpoint, "m.weight", kRows), ContainsSubstring("m.weight: shape"));
  const Fp8Checkpoint transposed({2, 3});
  CHECK_THROWS_WITH(find_matrix(transposed.write(), "m.weight", kRows, kCols),
                    ContainsSubstring("m.weight_scale_inv: shape [2, 3], expected [3, 2]"));
  float v[2];
  decode_rows(find_vector(checkpoint, "v", 2), 0, 1, v);
  CHECK(v[0] == 1.5F);
  CHECK(v[1] == -2.0F);
}

}  // namespace
}  // namespace kalibri::reference::test

// Rounding of activations: to bf16, and to FP8 with a scale for each 128 columns.
#include <limits>

#include "engine/kernels/codec.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The e4m3 value nearest to x by looking at all of them; of two equally near ones that with the even code.
float nearest_by_search(float x) {
  float best = 0;
  int best_code = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const float value = std::copysign(e4m3_to_f32(static_cast<std::uint8_t>(code)), x);
    const double error = std::fabs(static_cast<double>(x) - static_cast<double>(value));
    const double least = std::fabs(static_cast<double>(x) - static_cast<double>(best));
    if (code == 0 || error < least || (error == least && best_code % 2 == 1)) {
      best = value;
      best_code = code;
    }
  }
  return best;
}

/// A group whose scale is 1: a column of 448 stands beside the others.
std::vector<float> quantised_at_scale_one(const std::vector<float>& values) {
  std::vector<float> y;
  for (std::size_t first = 0; first < values.size(); first += 127) {
    std::vector<float> group(values.begin() + static_cast<std::ptrdiff_t>(first),
                             values.begin() + static_cast<std::ptrdiff_t>(std::min(first + 127, values.size())));
    group.push_back(448.0F);
    quantise_e4m3_groups(group.data(), static_cast<std::int64_t>(group.size()), group.data());
    CHECK(group.back() == 448.0F);
    y.insert(y.end(), group.begin(), group.end() - 1);
  }
  return y;
}

TEST_CASE("FP8 activations are the nearest codes: every code, every midpoint and its neighbours, and random values") {
  std::vector<float> values = {0.0F, -0.0F};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_f32(static_cast<std::uint8_t>(code));
    const float middle = (low + e4m3_to_f32(static_cast<std::uint8_t>(code + 1))) / 2;
    for (const float x : {low, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 500.0F)}) {
      values.insert(values.end(), {x, -x});
    }
  }
  Generator random(12);
  KALIBRI_SEED(random);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::ldexp(random.uniform(), static_cast<int>(random.below(22)) - 12);
    if (std::fabs(x) <= 448) values.push_back(x);
  }
  const std::vector<float> y = quantised_at_scale_one(values);
  REQUIRE(y.size() == values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    INFO("x " << values[i]);
    REQUIRE(bits(y[i]) == bits(nearest_by_search(values[i])));
  }
}

TEST_CASE("FP8 activations have a scale for each group of 128, the partial last one included, and a least one") {
  std::vector<float> x(300, 1.0F);
  x[5] = 7.0F;     // group 0: scale 7 / 448
  x[290] = -0.5F;  // group 2 is all of 44 columns: largest 1
  std::vector<float> y(300);
  quantise_e4m3_groups(x.data(), 300, y.data());
  const float first = 7.0F / 448, other = 1.0F / 448;
  CHECK(y[5] == 448 * first);
  CHECK(y[0] == nearest_by_search(1 / first) * first);
  CHECK(y[130] == 448 * other);
  CHECK(y[290] == -224 * other);
  // Zeros and what is far below the least range: the scale is 1e-10 / 448.
  std::vector<float> small(128, 0.0F);
  small[1] = 1e-12F;
  quantise_e4m3_groups(small.data(), 128, small.data());
  const float least = 1e-10F / 448;
  CHECK(bits(small[0]) == bits(0.0F));
  CHECK(small[1] == nearest_by_search(1e-12F / least) * least);
}

TEST_CASE("FP8 activations beside NaN or an infinity are NaN, and those of other groups are not") {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(256, 1.0F);
    x[200] = bad;
    quantise_e4m3_groups(x.data(), 256, x.data());
    CHECK(x[0] == 1.0F);
    for (std::size_t i = 128; i < 256; ++i) CHECK(std::isnan(x[i]));
  }
}

TEST_CASE("bf16 rounding goes to the nearest, ties to even, and keeps NaN and infinities") {
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> cases = {
      {0x3f800000, 0x3f800000}, {0x3f808000, 0x3f800000}, {0x3f818000, 0x3f820000}, {0x3f808001, 0x3f810000},
      {0x3f807fff, 0x3f800000}, {0xbf818000, 0xbf820000}, {0x7f7fffff, 0x7f800000}, {0x7f800000, 0x7f800000},
      {0x00008000, 0x00000000}, {0x00018000, 0x00020000}};
  for (const auto& [from, to] : cases) {
    float x = std::bit_cast<float>(from);
    round_to_bf16(&x, 1);
    CHECK(bits(x) == to);
  }
  float nan = std::bit_cast<float>(0x7f800001U);
  round_to_bf16(&nan, 1);
  CHECK(std::isnan(nan));
}

}  // namespace
}  // namespace kalibri::kernels

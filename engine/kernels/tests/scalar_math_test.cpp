// The elementary functions against libm in extended precision, which serves as truth here and nowhere in the engine.
#include "engine/kernels/scalar_math.hpp"

#include <cmath>
#include <limits>

#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using test::bits;
using test::Generator;

/// |value - exact| in units of the last place of an f32 of exact's size.
long double error_in_ulps(float value, long double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<long double>(value) - exact) / std::ldexp(1.0L, exponent - 23);
}

TEST_CASE("exp_f32 is within one ulp over its whole range") {
  long double worst = 0;
  for (std::int64_t i = -8733654; i <= 8872283; i += 7) {
    const float x = static_cast<float>(static_cast<double>(i) * 1e-5);
    worst = std::max(worst, error_in_ulps(exp_f32(x), std::exp(static_cast<long double>(x))));
  }
  INFO("worst error " << static_cast<double>(worst) << " ulp");
  CHECK(worst <= 1.0L);
}

TEST_CASE("exp_f32 ends where the normal numbers end") {
  const float smallest = -0x1.5d589ep6F;
  const float largest = 0x1.62e42ep6F;
  CHECK(exp_f32(smallest) >= std::numeric_limits<float>::min());
  CHECK(bits(exp_f32(std::nextafter(smallest, -100.0F))) == 0);
  CHECK(exp_f32(largest) <= std::numeric_limits<float>::max());
  CHECK(std::isinf(exp_f32(std::nextafter(largest, 100.0F))));
  CHECK(exp_f32(0.0F) == 1.0F);
  CHECK(exp_f32(-0.0F) == 1.0F);
  CHECK(exp_f32(std::numeric_limits<float>::infinity()) == std::numeric_limits<float>::infinity());
  CHECK(bits(exp_f32(-std::numeric_limits<float>::infinity())) == 0);
  CHECK(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(exp_f32(std::bit_cast<float>(0x7f800123U))));
}

TEST_CASE("softplus_f32 is within one ulp and becomes exp below and x above") {
  long double worst = 0;
  for (std::int64_t i = -8700000; i <= 3000000; i += 7) {
    const float x = static_cast<float>(static_cast<double>(i) * 1e-5);
    worst = std::max(worst, error_in_ulps(softplus_f32(x), std::log1p(std::exp(static_cast<long double>(x)))));
  }
  INFO("worst error " << static_cast<double>(worst) << " ulp");
  CHECK(worst <= 1.0L);
  CHECK(softplus_f32(30.0F) == 30.0F);
  CHECK(std::isnan(softplus_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("sigmoid_f32 is within 3.5 ulps and saturates") {
  // The sum inherits one ulp of exp and rounds by half; both may count double in the quotient's units, which rounds
  // too.
  long double worst = 0;
  for (std::int64_t i = -8700000; i <= 8700000; i += 7) {
    const float x = static_cast<float>(static_cast<double>(i) * 1e-5);
    worst = std::max(worst, error_in_ulps(sigmoid_f32(x), 1 / (1 + std::exp(-static_cast<long double>(x)))));
  }
  INFO("worst error " << static_cast<double>(worst) << " ulp");
  CHECK(worst <= 3.5L);
  CHECK(sigmoid_f32(0.0F) == 0.5F);
  CHECK(sigmoid_f32(200.0F) == 1.0F);
  CHECK(bits(sigmoid_f32(-200.0F)) == 0);
}

TEST_CASE("sincos_f32 is correctly rounded but for rare near-halves") {
  Generator random(1);
  KALIBRI_SEED(random);
  long double worst = 0;
  const auto check = [&worst](double angle) {
    float cosine = 0;
    float sine = 0;
    sincos_f32(angle, &cosine, &sine);
    worst = std::max(worst, error_in_ulps(cosine, std::cos(static_cast<long double>(angle))));
    worst = std::max(worst, error_in_ulps(sine, std::sin(static_cast<long double>(angle))));
  };
  for (int i = 0; i < 200'000; ++i) {
    check(static_cast<double>(static_cast<float>(random.below(1 << 20)) * std::fabs(random.uniform())));
    check(static_cast<double>(random.uniform()) * 4);
    check(static_cast<double>(random.uniform()) * 0x1p31);
  }
  // Next to multiples of pi/2, where the reduction loses most.
  for (std::int64_t n = 0; n < 100'000; ++n) {
    const double multiple = static_cast<double>(n * 13'679) * 0x1.921fb54442d18p0;
    check(multiple);
    check(static_cast<double>(static_cast<float>(multiple)));
  }
  INFO("worst error " << static_cast<double>(worst) << " ulp");
  CHECK(worst <= 0.501L);
}

TEST_CASE("pow_f64 gives rotary frequencies to 1e-14") {
  Generator random(2);
  KALIBRI_SEED(random);
  long double worst = 0;
  const auto check = [&worst](double base, double exponent) {
    const long double exact = std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
    worst = std::max(worst, std::fabs(static_cast<long double>(pow_f64(base, exponent)) / exact - 1));
  };
  for (const double base : {1e4, 1e6, 1e7, 5e5, 2.0, 1.0}) {
    for (int i = 0; i < 64; ++i) check(base, -2.0 * i / 128);
  }
  for (int i = 0; i < 100'000; ++i) {
    const double base = std::exp(25 * static_cast<double>(random.uniform()));
    check(base, 2 * static_cast<double>(random.uniform()));
  }
  INFO("worst relative error " << static_cast<double>(worst));
  CHECK(worst < 1e-14L);
  CHECK(pow_f64(10'000, 0) == 1.0);
}

TEST_CASE("f32_to_bf16 rounds to nearest even") {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto value = static_cast<std::uint16_t>(pattern);
    if (std::isnan(bf16_to_f32(value))) {
      CHECK(std::isnan(bf16_to_f32(f32_to_bf16(bf16_to_f32(value)))));
      continue;
    }
    REQUIRE(f32_to_bf16(bf16_to_f32(value)) == value);
    if ((pattern & 0x7fff) == 0x7f80) continue;  // infinity has no neighbour above
    const std::uint32_t exact = pattern << 16;
    const std::uint32_t even = pattern & 1 ? pattern + 1 : pattern;
    REQUIRE(f32_to_bf16(std::bit_cast<float>(exact | 0x7fff)) == pattern);
    REQUIRE(f32_to_bf16(std::bit_cast<float>(exact | 0x8000)) == even);
    REQUIRE(f32_to_bf16(std::bit_cast<float>(exact | 0x8001)) == pattern + 1);
  }
  CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001U)))));  // the payload's low bits alone
}

TEST_CASE("e4m3_to_f32 has the value that the format defines for all 256 codes") {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const float value = e4m3_to_f32(static_cast<std::uint8_t>(code));
    INFO("code " << code);
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
      continue;
    }
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    CHECK(bits(value) == bits(static_cast<float>(code & 0x80 ? -magnitude : magnitude)));
  }
}

}  // namespace
}  // namespace kalibri::kernels

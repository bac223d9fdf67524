// The small number formats, against their definitions.
#include "reference/number_formats.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "fixtures/catch.hpp"

namespace kalibri::reference::test {
namespace {

TEST_CASE("every e4m3 code is its sign, exponent and mantissa") {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const float value = decode_e4m3(static_cast<std::uint8_t>(code));
    if (code == 0x7f || code == 0xff) {
      CHECK(std::isnan(value));
      continue;
    }
    const int exponent = (code / 8) % 16;
    const double mantissa = code % 8 / 8.0;
    const double magnitude =
        exponent == 0 ? mantissa * std::pow(2.0, -6) : (1.0 + mantissa) * std::pow(2.0, exponent - 7);
    CHECK(static_cast<double>(value) == (code < 128 ? magnitude : -magnitude));
    CHECK(std::signbit(value) == (code >= 128));
  }
  CHECK(decode_e4m3(0x7e) == 448.0F);
  CHECK(decode_e4m3(0x01) == std::ldexp(1.0F, -9));
}

TEST_CASE("bf16 is the upper half of an f32") {
  CHECK(decode_bf16(0x3f80) == 1.0F);
  CHECK(decode_bf16(0xc049) == -3.140625F);
  CHECK(decode_bf16(0x0001) == std::ldexp(1.0F, -133));  // subnormal
  CHECK(std::isinf(decode_bf16(0x7f80)));
  CHECK(std::isnan(decode_bf16(0x7fc0)));
}

TEST_CASE("f16 codes are the numbers that the format defines") {
  CHECK(decode_f16(0x3c00) == 1.0F);
  CHECK(decode_f16(0xc000) == -2.0F);
  CHECK(decode_f16(0x3c01) == 1.0F + 0x1p-10F);
  CHECK(decode_f16(0x7bff) == 65504.0F);
  CHECK(decode_f16(0x0001) == 0x1p-24F);
  CHECK(decode_f16(0x0400) == 0x1p-14F);
  CHECK(decode_f16(0x7c00) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(decode_f16(0x7c01)));
}

TEST_CASE("rounding to bf16 takes the nearest number, of two the one with an even code") {
  CHECK(round_to_bf16(1.0F) == 1.0F);
  CHECK(round_to_bf16(1.0F + 0x1p-8F) == 1.0F);                       // a tie below the odd code
  CHECK(round_to_bf16(1.0F + 0x3p-8F) == 1.0F + 0x1p-6F);             // a tie above it
  CHECK(round_to_bf16(1.0F + 0x1p-8F + 0x1p-23F) == 1.0F + 0x1p-7F);  // just above a tie
  CHECK(round_to_bf16(-1.0F - 0x3p-8F) == -1.0F - 0x1p-6F);
  CHECK(round_to_bf16(0x1p-134F) == 0.0F);         // subnormal, a tie with zero
  CHECK(round_to_bf16(0x3p-134F) == 0x1p-132F);    // subnormal, a tie
  CHECK(std::signbit(round_to_bf16(-0x1p-140F)));  // keeps its sign
  CHECK(std::isinf(round_to_bf16(std::numeric_limits<float>::max())));
  CHECK(std::isnan(round_to_bf16(std::nanf(""))));
  for (int code = 0; code < 0x7f80; ++code) {
    const float value = decode_bf16(static_cast<std::uint16_t>(code));
    REQUIRE(round_to_bf16(value) == value);
  }
}

TEST_CASE("an f64 is rounded to bf16 once, not by way of f32") {
  const double above_tie = 1 + 0x1p-8 + 0x1p-30;  // its f32 is the tie 1 + 2^-8, which goes to 1
  CHECK(round_to_bf16(static_cast<float>(above_tie)) == 1.0F);
  CHECK(round_to_bf16(above_tie) == 1 + 0x1p-7);
  const double below_tie = 1 + 0x3p-8 - 0x1p-52;  // its f32 is the tie 1 + 3 * 2^-8, which goes to 1 + 2^-6
  CHECK(round_to_bf16(static_cast<float>(below_tie)) == 1.0F + 0x1p-6F);
  CHECK(round_to_bf16(below_tie) == 1 + 0x1p-7);
  CHECK(round_to_bf16(-above_tie) == -1 - 0x1p-7);
  CHECK(round_to_bf16(1 + 0x1p-8) == 1.0);  // ties themselves go to even
  CHECK(round_to_bf16(1 + 0x3p-8) == 1 + 0x1p-6);
  CHECK(round_to_bf16(0x1p-134) == 0.0);
  CHECK(round_to_bf16(0x1p-134 + 0x1p-180) == 0x1p-133);
  CHECK(round_to_bf16(0x1p-126 - 0x1p-140) == 0x1p-126);  // of the subnormals into the normals
  CHECK(std::signbit(round_to_bf16(-1e-300)));
  CHECK(round_to_bf16(0x1p128 - 0x1p119 - 0x1p90) == 0x1p128 - 0x1p120);  // the largest, up to half a step above
  CHECK(std::isinf(round_to_bf16(0x1p128 - 0x1p119)));
  CHECK(round_to_bf16(-1e300) == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(round_to_bf16(std::nan(""))));
  for (std::uint32_t bits = 0; bits < 0x7f800000; bits += 0x1234) {  // what an f32 holds is rounded as an f32
    const auto x = std::bit_cast<float>(bits);
    REQUIRE(round_to_bf16(static_cast<double>(x)) == static_cast<double>(round_to_bf16(x)));
  }
}

TEST_CASE("rounding to e4m3 takes the nearest number, of two the one with an even code, and saturates") {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = decode_e4m3(static_cast<std::uint8_t>(code));
    const float high = decode_e4m3(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    CAPTURE(code);
    CHECK(round_to_e4m3(low) == low);
    CHECK(round_to_e4m3(middle) == (code % 2 == 0 ? low : high));
    CHECK(round_to_e4m3(std::nextafter(middle, 0.0F)) == low);
    CHECK(round_to_e4m3(-std::nextafter(middle, 500.0F)) == -high);
  }
  CHECK(round_to_e4m3(449.0F) == 448.0F);
  CHECK(round_to_e4m3(-1e30F) == -448.0F);
  CHECK(round_to_e4m3(std::numeric_limits<float>::infinity()) == 448.0F);
  CHECK(std::signbit(round_to_e4m3(-0.0F)));
  CHECK(std::isnan(round_to_e4m3(std::nanf(""))));
}

TEST_CASE("activations are quantised to FP8 in groups of 128, the last by itself") {
  std::vector<float> row(300, 0.0F);
  row[0] = 448.0F;    // group 0: s = 1
  row[1] = 17.0F;     // a tie of 16 and 18: the even code
  row[2] = -19.0F;    // a tie of 18 and 20: the even code
  row[3] = 0x1p-10F;  // a tie of 0 and the smallest subnormal
  row[4] = 0x3p-10F;
  row[127] = 100.0F;
  // Group 1 is zero: s = 1e-10 / 448.
  row[256] = -7.0F;  // group 2, of 44 columns: s = 7 / 448 = 1 / 64
  row[299] = 1.0F + 0x1p-5F;
  round_to_dynamic_fp8<float>(row);
  CHECK(row[0] == 448.0F);
  CHECK(row[1] == 16.0F);
  CHECK(row[2] == -20.0F);
  CHECK(row[3] == 0.0F);
  CHECK(row[4] == 0x1p-8F);
  CHECK(row[127] == 96.0F);  // a tie of 96 and 104
  CHECK(row[128] == 0.0F);
  CHECK(row[256] == -7.0F);
  CHECK(row[299] == 1.0F);                   // 66 of 1 / 64: nearer to 64 than to 72
  std::vector<float> tiny{1e-12F, -3e-11F};  // below the least maximum: s is 1e-10 / 448
  const float s = 1e-10F / 448.0F;
  const float code = round_to_e4m3(1e-12F / s);
  round_to_dynamic_fp8<float>(tiny);
  CHECK(tiny[0] == code * s);
  CHECK(code == 4.5F);                   // of 4.48
  std::vector<float> third{1.0F, 0.3F};  // s = 1 / 448 is rounded, and so is code * s
  round_to_dynamic_fp8<float>(third);
  CHECK(third[0] == 448.0F * (1.0F / 448.0F));
  CHECK(third[1] == 128.0F * (1.0F / 448.0F));  // 134.4, nearer to 128 than to 144
}

TEST_CASE("activations as integers: a scale a group, ties to even, the largest value whole, zeros kept") {
  std::vector<float> row(64);
  row[0] = -127.0F;  // group 0: a = 1
  row[1] = 0.5F;
  row[2] = 1.5F;
  row[3] = 2.4F;
  row[32] = 254.0F;  // group 1: a = 2
  row[33] = 3.0F;    // a tie of 2 and 4: 1.5 goes to 2
  row[34] = -1.1F;
  round_to_integers<float>(row, 32, 127);
  CHECK(row[0] == -127.0F);
  CHECK(row[1] == 0.0F);
  CHECK(row[2] == 2.0F);
  CHECK(row[3] == 2.0F);
  CHECK(row[32] == 254.0F);
  CHECK(row[33] == 4.0F);
  CHECK(row[34] == -2.0F);
  std::vector<float> fine{1.0F, 0.3F, 0.0F};
  round_to_integers<float>(fine, 32, 32767);
  CHECK(fine[0] == 32767.0F * (1.0F / 32767.0F));
  CHECK(fine[1] == 9830.0F * (1.0F / 32767.0F));  // of 9830.1
  CHECK(fine[2] == 0.0F);
  std::vector<float> zeros(32);
  round_to_integers<float>(zeros, 32, 127);
  CHECK(zeros == std::vector<float>(32));
}

TEST_CASE("f64 activations are quantised to the same codes, with scales and quotients of f64") {
  std::vector<double> fp8{1, 0.3, 1.0 / 448 * (16 + 1 + 0x1p-40)};  // s = 1 / 448; just above the tie of 16 and 18
  round_to_dynamic_fp8<double>(fp8);
  CHECK(fp8[0] == 448 * (1.0 / 448));
  CHECK(fp8[1] == 128 * (1.0 / 448));
  CHECK(fp8[2] == 18 * (1.0 / 448));
  std::vector<double> integers{127, 0.5, 0.5 + 0x1p-40, 0, -3.2};
  round_to_integers<double>(integers, 32, 127);
  CHECK(integers == std::vector<double>{127, 0, 1, 0, -3});
}

}  // namespace
}  // namespace kalibri::reference::test

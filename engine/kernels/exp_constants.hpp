// Constants of exp_f32, shared by its scalar definition and its SIMD version (scalar_math.cpp says what they do).
#pragma once

#include <cstdint>

namespace kalibri::kernels {

/// exp is 0 below the first, +inf above the second: the arguments whose result still is a normal number.
constexpr float kExpSmallest = -0x1.5d589ep6F;
constexpr float kExpLargest = 0x1.62e42ep6F;

constexpr float kLog2E = 0x1.715476p0F;
constexpr float kLn2High = 0x1.62e430p-1F;  // ln 2 = high + low
constexpr float kLn2Low = -0x1.05c610p-29F;
/// x + this rounds x to an integer and leaves it, two's complement, in the low bits of the sum.
constexpr float kRoundToInteger = 0x1.8p23F;

/// exp(r) = 1 + r (1 + r (1/2! + r (1/3! + ...))), |r| <= ln(2)/2: the remainder r^8/8! is below 5.2e-9, 0.05 ulp.
constexpr float kExpTaylor[] = {1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 1.0F / 2, 1.0F, 1.0F};

}  // namespace kalibri::kernels

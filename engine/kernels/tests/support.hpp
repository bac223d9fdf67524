// What the kernel tests share: a seeded generator whose seed is printed when a case fails, and views of bits.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"

/// Prints the seed with every failure of the rest of the case.
#define KALIBRI_SEED(generator) INFO("seed " << (generator).seed())

namespace kalibri::kernels::test {

/// splitmix64: ours, so that a seed means the same numbers everywhere.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : seed_(seed), state_(seed) {}
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
  /// Uniform in [-1, 1), 24 bits.
  float uniform() { return static_cast<float>(static_cast<std::int64_t>(next() >> 39) - (1 << 24)) * 0x1p-24F; }
  /// uniform() times a power of two between 2^-largest and 2^largest.
  float spread(std::int64_t largest) {
    const float value = uniform();
    const auto exponent = static_cast<std::uint32_t>(127 + below(2 * largest + 1) - largest);
    return value * std::bit_cast<float>(exponent << 23);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t state_;
};

inline std::vector<float> uniform_vector(Generator& random, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.uniform();
  return values;
}

inline std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace kalibri::kernels::test

// Seeded choices for tests that try many inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fixtures/generator.hpp"

namespace kalibri::text::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  /// A number from 0 to n - 1.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(fixtures::random_word(seed_, index_++) % n); }

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

}  // namespace kalibri::text::test

// What the kernel tests share: seeded numbers whose seed is printed when a case fails, memory whose surroundings are
// watched, and the comparison of bits.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/kernels.hpp"
#include "fixtures/catch.hpp"

/// Prints the seed with every failure of the rest of the scope.
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
  /// Any f32 that is not NaN: every exponent as likely, so mostly extreme, with zeros, subnormals and infinities.
  float any() {
    const auto pattern = static_cast<std::uint32_t>(next());
    const float value = std::bit_cast<float>(pattern);
    return std::isnan(value) ? std::bit_cast<float>(pattern & 0xff800000U) : value;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t state_;
};

/// n elements in memory of their own. They end `gap` elements before a page that faults when it is touched; the gap and
/// what lies before the elements hold a pattern that must stay.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t n, std::int64_t gap = 0) : n_(static_cast<std::size_t>(n)) {
    const std::size_t used = (n_ + static_cast<std::size_t>(gap)) * sizeof(T);
    size_ = (used + kPage - 1) / kPage * kPage + kPage;  // the elements' pages ...
    void* memory = mmap(nullptr, size_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<unsigned char*>(memory);
    std::memset(base_, kPattern, size_);
    mprotect(base_ + size_, kPage, PROT_NONE);  // ... and the one that faults
    data_ = reinterpret_cast<T*>(base_ + size_ - used);
  }
  Guarded(std::span<const T> values, std::int64_t gap) : Guarded(static_cast<std::int64_t>(values.size()), gap) {
    std::ranges::copy(values, data_);
  }
  ~Guarded() { munmap(base_, size_ + kPage); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::vector<T> values() const { return std::vector<T>(data_, data_ + n_); }
  [[nodiscard]] bool surroundings_intact() const {
    const auto* begin = reinterpret_cast<const unsigned char*>(data_);
    const auto* end = reinterpret_cast<const unsigned char*>(data_ + n_);
    for (const unsigned char* p = base_; p < base_ + size_; ++p) {
      if ((p < begin || p >= end) && *p != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kPage = 65536;  // a multiple of every page size
  static constexpr unsigned char kPattern = 0xa5;
  std::size_t n_;
  std::size_t size_ = 0;
  unsigned char* base_ = nullptr;
  T* data_ = nullptr;
};

/// The kernels compiled on isa_scalar.hpp (plain_vectors.cpp).
const KernelTable& plain_vectors();

/// Every table but the definition itself.
inline std::vector<const KernelTable*> tables_under_test() {
  std::vector<const KernelTable*> tables = runnable_kernels();
  tables.front() = &plain_vectors();
  return tables;
}

inline const KernelTable& scalar() { return *find_kernels("scalar"); }

inline std::vector<float> uniform_vector(Generator& random, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.uniform();
  return values;
}

inline std::vector<float> any_vector(Generator& random, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.any();
  return values;
}

inline std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// Whether two results have the same bits; of a NaN only that it is one.
inline bool same_bits(float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); }
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace kalibri::kernels::test

// A sum in four streams, of which more or fewer were slower where this was tried.
#include "engine/kernels/read_sum.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kalibri::kernels {
namespace {

constexpr std::size_t kStreams = 4;
constexpr std::size_t kLine = 64;

/// n_lines of each stream.
std::uint64_t sum_words(const unsigned char* data, std::size_t n_lines) {
  std::uint64_t sums[kStreams] = {};
  for (std::size_t i = 0; i < n_lines * kLine; i += sizeof(std::uint64_t)) {
    for (std::size_t k = 0; k < kStreams; ++k) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + k * n_lines * kLine + i, sizeof(word));
      sums[k] += word;
    }
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

#if defined(__x86_64__)
/// A line of each stream at a time.
[[gnu::target("avx2")]] std::uint64_t sum_lines(const unsigned char* data, std::size_t n_lines) {
  const auto* halves = reinterpret_cast<const __m256i*>(data);
  __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
  for (std::size_t i = 0; i < n_lines; ++i) {
    _Pragma("GCC unroll 4") for (std::size_t k = 0; k < kStreams; ++k) {
      even = _mm256_add_epi64(even, _mm256_loadu_si256(halves + 2 * (k * n_lines + i)));
      odd = _mm256_add_epi64(odd, _mm256_loadu_si256(halves + 2 * (k * n_lines + i) + 1));
    }
  }
  alignas(32) std::uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi64(even, odd));
  return sums[0] + sums[1] + sums[2] + sums[3];
}
#endif

}  // namespace

std::uint64_t read_sum(const unsigned char* data, std::size_t n_bytes) {
  const std::size_t n_lines = n_bytes / kStreams / kLine;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_lines(data, n_lines);
#endif
  return sum_words(data, n_lines);
}

}  // namespace kalibri::kernels

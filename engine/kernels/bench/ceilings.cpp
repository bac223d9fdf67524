// A core's fused multiply-adds: independent chains in registers, as wide as a table's vectors. Its reads: a sum in four
// streams, of which more or fewer were slower where this was tried.
#include "engine/kernels/bench/ceilings.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kalibri::kernels::bench {
namespace {

constexpr int kChains = 12;

/// n rounds over kChains sums in registers, which no optimiser may shorten: `constraint` makes each one look used.
#define KALIBRI_FMA_CHAINS(Vector, splat, fma, constraint)                          \
  Vector sums[kChains];                                                             \
  const Vector a = splat(0.999F), b = splat(0.001F);                                \
  _Pragma("GCC unroll 12") for (int k = 0; k < kChains; ++k) sums[k] = splat(1.0F); \
  for (std::int64_t i = 0; i < n; ++i) {                                            \
    _Pragma("GCC unroll 12") for (int k = 0; k < kChains; ++k) {                    \
      Vector sum = fma(sums[k], a, b);                                              \
      asm volatile("" : constraint(sum));                                           \
      sums[k] = sum;                                                                \
    }                                                                               \
  }

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void run_avx2(std::int64_t n) {
  KALIBRI_FMA_CHAINS(__m256, _mm256_set1_ps, _mm256_fmadd_ps, "+x")
}
[[gnu::target("avx512f")]] void run_avx512(std::int64_t n) {
  KALIBRI_FMA_CHAINS(__m512, _mm512_set1_ps, _mm512_fmadd_ps, "+v")
}
#elif defined(__aarch64__)
void run_neon(std::int64_t n) { KALIBRI_FMA_CHAINS(float32x4_t, vdupq_n_f32, vfmaq_f32, "+w") }
#endif

constexpr std::size_t kStreams = 4;

std::uint64_t sum_words(const unsigned char* data, std::size_t n_bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  const std::size_t n = n_bytes / kStreams / sizeof(std::uint64_t);
  std::uint64_t sums[kStreams] = {};
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < kStreams; ++k) sums[k] += words[k * n + i];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

#if defined(__x86_64__)
/// A line of each stream at a time.
[[gnu::target("avx2")]] std::uint64_t sum_lines(const unsigned char* data, std::size_t n_bytes) {
  const auto* halves = reinterpret_cast<const __m256i*>(data);
  const std::size_t n = n_bytes / kStreams / sizeof(__m256i) / 2;
  __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
  for (std::size_t i = 0; i < n; ++i) {
    _Pragma("GCC unroll 4") for (std::size_t k = 0; k < kStreams; ++k) {
      even = _mm256_add_epi64(even, _mm256_loadu_si256(halves + 2 * (k * n + i)));
      odd = _mm256_add_epi64(odd, _mm256_loadu_si256(halves + 2 * (k * n + i) + 1));
    }
  }
  alignas(32) std::uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi64(even, odd));
  return sums[0] + sums[1] + sums[2] + sums[3];
}
#endif

}  // namespace

std::uint64_t read_sum(const unsigned char* data, std::size_t n_bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_lines(data, n_bytes);
#endif
  return sum_words(data, n_bytes);
}

double run_fma_chains(std::string_view isa, std::int64_t n) {
  int width = 0;
#if defined(__x86_64__)
  if (isa == "avx2") run_avx2(n), width = 8;
  if (isa == "avx512") run_avx512(n), width = 16;
#elif defined(__aarch64__)
  if (isa == "neon") run_neon(n), width = 4;
#endif
  return 2.0 * kChains * width * static_cast<double>(n);
}

}  // namespace kalibri::kernels::bench

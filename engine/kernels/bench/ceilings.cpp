// A core's fused multiply-adds: independent chains in registers, as wide as a table's vectors.
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

}  // namespace

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

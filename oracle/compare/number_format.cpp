#include "oracle/compare/number_format.hpp"

#include <bit>
#include <cmath>

namespace kalibri::oracle {

namespace {

constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;          // of an f64
constexpr std::uint64_t kBeyondBf16 = (std::uint64_t{1} << (52 - 7)) - 1;  // what bf16's seven bits leave of it

bool is_telling(double x) {
  return std::isfinite(x) && std::abs(x) >= 0x1p-126 && (std::bit_cast<std::uint64_t>(x) & kMantissa) != 0;
}

bool is_wider(double x) { return is_telling(x) && (std::bit_cast<std::uint64_t>(x) & kBeyondBf16) != 0; }

}  // namespace

void FormatCount::add(std::span<const double> reference, std::span<const double> candidate) {
  for (const double x : reference) {
    n_telling += is_telling(x) ? 1 : 0;
    n_reference_wider += is_wider(x) ? 1 : 0;
  }
  for (const double x : candidate) n_candidate_wider += is_wider(x) ? 1 : 0;
}

void FormatCount::add(const FormatCount& other) {
  n_telling += other.n_telling;
  n_reference_wider += other.n_reference_wider;
  n_candidate_wider += other.n_candidate_wider;
}

}  // namespace kalibri::oracle

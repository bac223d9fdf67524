// Whether numbers are such as bf16 holds: what a rounding leaves behind, however small the difference that it makes.
#pragma once

#include <cstdint>
#include <span>

namespace kalibri::oracle {

/// Zeros, powers of two and what is below 2^-126 tell nothing: every format holds them. Of f32 numbers that were not
/// rounded one in 2^16 is a bf16 number.
struct FormatCount {
  std::int64_t n_telling = 0;          // of the reference
  std::int64_t n_reference_wider = 0;  // telling numbers that need more bits than bf16 has
  std::int64_t n_candidate_wider = 0;

  void add(std::span<const double> reference, std::span<const double> candidate);
  void add(const FormatCount& other);
};

}  // namespace kalibri::oracle

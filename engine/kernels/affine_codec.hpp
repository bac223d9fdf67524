// The affine format of MLX, group by group: codes of a few bits, w' = scale * code + bias with a scale and a bias for
// each group of consecutive columns. The definition of its quantiser and of its packing, one group at a time; which
// tensors are quantised, and how, is not known here. Source: mlx 0.32, mlx/backend/cpu/quantized.cpp (quantize) and
// mlx/backend/metal/kernels/quantized.h (affine_quantize), in f32 with one rounding an operation.
#pragma once

#include <cstdint>

#include "engine/kernels/matrix_view.hpp"

namespace kalibri::kernels {

/// mlx rounds in two ways. cpu: codes and the grid's zero to even; gpu (Metal and CUDA): half away from zero, and the
/// running maximum of a group starts at 0, so that a group of negative numbers spans [minimum, 0].
enum class AffineRule : std::uint8_t { cpu, gpu };

/// The formats there are: bits 2, 3, 4, 5, 6, 8 and groups of 32, 64, 128.
bool is_affine_bits(std::int64_t bits);
bool is_affine_group(std::int64_t group_size);
inline constexpr std::int64_t kLargestAffineGroup = 128;

struct AffineGrid {
  float scale = 0;  // may be negative
  float bias = 0;   // the value of code 0
};

/// codes [group_size] <- the group's codes, computed with the grid that is returned, before it is stored (in bf16, as a
/// rule). w [group_size] must be finite. The edge of larger magnitude gets code 0 and 0 lies on the grid, so a scale is
/// as often negative as positive.
AffineGrid quantise_group(const float* w, std::int64_t group_size, std::int64_t bits, AffineRule rule,
                          std::uint8_t* codes);

/// packed [n * bits / 8] <- the codes [n] as a bit stream, least significant bit first: code k has bits k * bits on.
/// n is a multiple of 8.
void pack_codes(const std::uint8_t* codes, std::int64_t n, std::int64_t bits, unsigned char* packed);
void unpack_codes(const unsigned char* packed, std::int64_t n, std::int64_t bits, std::uint8_t* codes);

/// The stored grid of group `group` in row `row` of an affine matrix.
AffineGrid stored_grid(const MatrixView& w, std::int64_t row, std::int64_t group);

}  // namespace kalibri::kernels

// The affine format of MLX, by rows: each group of consecutive columns has a scale and a bias, each number a code of a
// few bits. Source: ml-explore/mlx 0.32.2, mlx/backend/cpu/quantized.cpp and mlx/backend/metal/kernels/quantized.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kalibri::reference {

struct AffineFormat {
  std::int64_t bits = 0;        // 2, 3, 4, 5, 6 or 8
  std::int64_t group_size = 0;  // 32, 64 or 128
  bool operator==(const AffineFormat&) const = default;
};

/// Whether MLX has the format.
bool exists(const AffineFormat& format);

/// Code `k` of a packed row: bits k * bits to k * bits + bits - 1 of its bytes, the least significant bit first.
int affine_code(std::span<const std::byte> row, std::int64_t bits, std::int64_t k);

/// code * scale + bias, each operation rounded to f32.
float affine_value(int code, float scale, float bias);

/// MLX's two quantisers, which differ in how they round (half to even; half away from zero) and in what the maximum of
/// a group starts from (nothing; zero).
enum class AffineRule { cpu, gpu };

struct AffineGrid {
  float scale = 0;
  float bias = 0;
};

/// Quantises one group of bf16 numbers: its codes, and the grid that they were found with, before it is rounded to be
/// stored. The edge of larger magnitude gets code 0 and the grid is stretched until zero lies on it. Source: MLX, as
/// above.
AffineGrid quantise_group(std::span<const float> w, std::int64_t bits, AffineRule rule, std::span<int> codes);

}  // namespace kalibri::reference

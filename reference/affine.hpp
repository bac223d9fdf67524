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

}  // namespace kalibri::reference

// Bytes and values of a tensor, and which of these are no numbers. It knows dtypes, no models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"

namespace kalibri::checkpoint {

/// Bytes [first, first + n) of a tensor, read past the mapping: a file that became shorter is then an error and no
/// signal, and the pages around are not drawn into memory. Throws Error(file).
std::vector<std::byte> read_bytes(const TensorView& tensor, std::int64_t first, std::int64_t n);

/// All elements of an f32, bf16 or f16 tensor, exactly; read as above.
std::vector<float> read_widened(const TensorView& tensor);

/// Index of the first element of an f32, bf16, f16 or f8_e4m3 tensor that is NaN or infinite (f8_e4m3 has two NaN codes
/// and no infinity), or -1. Tensors of other dtypes are not looked at: -1.
std::int64_t find_not_finite(const TensorView& tensor);

/// Whether an FP8 weight may have this block scale: a number below 2^16 in size. Products need |x_j * scale_inv| < 2^38
/// (kernels::KernelTable::matmul), so that activations may reach 2^22; real scales are far below 1.
constexpr bool is_block_scale(float scale_inv) { return scale_inv > -0x1p16F && scale_inv < 0x1p16F; }

/// "(3, 17)": where element `index` lies in a tensor of that shape.
std::string index_text(std::int64_t index, std::span<const std::int64_t> shape);

}  // namespace kalibri::checkpoint

// Values of a tensor, widened, and which are no numbers. It knows dtypes, no models.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"

namespace kalibri::checkpoint {

/// All elements of an f32, bf16 or f16 tensor, exactly.
std::vector<float> widened(const TensorView& tensor);

/// Index of the first element of an f32, bf16, f16 or f8_e4m3 tensor that is NaN or infinite (f8_e4m3 has two NaN codes
/// and no infinity), or -1. Tensors of other dtypes are not looked at: -1.
std::int64_t find_not_finite(const TensorView& tensor);

/// "(3, 17)": where element `index` lies in a tensor of that shape.
std::string index_text(std::int64_t index, std::span<const std::int64_t> shape);

}  // namespace kalibri::checkpoint

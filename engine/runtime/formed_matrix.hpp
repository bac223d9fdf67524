// A stored matrix in another form, in memory that the caller owns.
#pragma once

#include <cstdint>

#include "engine/kernels/matrix_view.hpp"
#include "engine/runtime/precision.hpp"

namespace kalibri::runtime {

/// The form that `stored` takes when `wanted` is asked for: native where it has that format already, bf16 instead of
/// affine where the groups do not divide its rows.
WeightForm form_for(const WeightForm& wanted, const kernels::MatrixView& stored);

/// Of a form by `form_for` that is not native: the bytes it takes, where its parts lie in them, and making them.
/// Throws Error(tensor) where bf16 or affine is to be made of a matrix that holds NaN or an infinity.
std::int64_t formed_bytes(const WeightForm& form, const kernels::MatrixView& stored);
kernels::MatrixView formed_view(const WeightForm& form, const kernels::MatrixView& stored, const unsigned char* room);
void form_matrix(const WeightForm& form, const kernels::MatrixView& stored, unsigned char* room);

}  // namespace kalibri::runtime

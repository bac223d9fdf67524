// A weight matrix as the checkpoint stores it (bf16, f32, FP8 e4m3 with 128x128 block scales or one scale for all, or
// packed affine codes), decoded by rows on demand. The reference's own decoding; nothing is shared with the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "reference/checkpoint.hpp"
#include "reference/weight_form.hpp"

namespace kalibri::reference {

struct StoredMatrix {
  const TensorView* weight = nullptr;
  const TensorView* scale_inv = nullptr;  // FP8 only: bf16, f16 or f32 [ceil(n_rows/128), ceil(n_cols/128)]
  std::int64_t n_rows = 0;
  std::int64_t n_cols = 0;
  std::int64_t first_row = 0;    // in `weight`, which may hold other matrices before and behind this one
  std::optional<float> scale{};  // FP8 without scale_inv: the factor of every value
  AffineFormat affine{};         // U32 only; both bf16 or both f32 [all rows, n_cols / group_size]:
  const TensorView* scales = nullptr;
  const TensorView* biases = nullptr;
  WeightForm form{};  // that decode_rows gives it in
};

/// The file's bytes of rows [first_row, first_row + n_rows) of `matrix`.
std::span<const std::byte> stored_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows);

/// Lets go of the memory under these rows.
void drop_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows);

/// `name` of shape [n_rows, n_cols], with its `…weight_scale_inv` when it is FP8, its scales and biases when it is
/// packed. The block scales, which are few, are looked at. Throws Error, also for block scales beside another weight.
StoredMatrix find_matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t n_rows,
                         std::int64_t n_cols);

/// `name` of shape [n], bf16 or f32, or f32 alone, as a matrix of one row. Throws Error.
StoredMatrix find_vector(const Checkpoint& checkpoint, const std::string& name, std::int64_t n);
StoredMatrix find_f32_vector(const Checkpoint& checkpoint, const std::string& name, std::int64_t n);

/// `name` of shape [a, b, c], bf16, f32 or packed, as a matrix of a * b rows of c. Throws Error.
StoredMatrix find_stack(const Checkpoint& checkpoint, const std::string& name, std::int64_t a, std::int64_t b,
                        std::int64_t c);

/// `matrix` in another form.
StoredMatrix in_form(StoredMatrix matrix, const WeightForm& form);

/// `matrix` as that of a router or of a gate of an expert: as stored, but as bf16 when it is FP8 and the dense matrices
/// become bf16 or affine. Throws Error when it is packed.
StoredMatrix as_router(StoredMatrix matrix, const WeightForm& dense);

/// Whether it is stored as FP8 with block scales and its form leaves it so.
bool is_multiplied_as_fp8(const StoredMatrix& matrix);

/// Columns that share a scale in the affine format that the matrix is multiplied in; 0 where it is none.
std::int64_t affine_group_size(const StoredMatrix& matrix);

/// Rows [first_row, first_row + n_rows) of a matrix that has no block scales.
StoredMatrix slice_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows);

/// The only element of `name`, bf16, f16 or f32, whatever its number of axes. Throws Error.
float read_scalar(const Checkpoint& checkpoint, const std::string& name);

/// Writes rows [first_row, first_row + n_rows) of `matrix`, in its form, to out [n_rows, n_cols], row-major. An FP8
/// value is its code times its block's scale, rounded once to f32; a packed one is fl(fl(code * scale) + bias) in f32.
/// T is float, or double, which then holds that same number. Throws Error when an FP8 code is NaN or a scale or bias is
/// not finite.
template <typename T>
void decode_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows, T* out);

}  // namespace kalibri::reference

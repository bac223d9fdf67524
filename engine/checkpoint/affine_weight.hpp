// A weight that is stored as packed affine codes: NAME.weight (U32) with NAME.scales and NAME.biases beside it, a
// matrix [out, in] or a stack of them [n, out, in]. It finds and checks the three; what they mean is said by
// engine/kernels/affine_codec.hpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/checkpoint/checkpoint.hpp"

namespace kalibri::checkpoint {

/// "model.norm" of "model.norm.weight".
std::string_view module_of(std::string_view weight_name);
std::string affine_scales_name(std::string_view weight_name);
std::string affine_biases_name(std::string_view weight_name);

/// Whether the weight is stored so: it is U32, or has scales or biases.
bool is_affine(const Checkpoint& checkpoint, std::string_view weight_name);

/// Why such a weight of logical shape [.., out, in] cannot be used: no format in config.json, groups that do not divide
/// a row, a row of another length, scales or biases missing or of another shape or dtype.
std::optional<Problem> affine_problem(const Checkpoint& checkpoint, std::string_view weight_name,
                                      std::span<const std::int64_t> shape);

/// Rows [first_row, first_row + n_rows) of all the weight's rows, in place; affine_problem found none.
kernels::MatrixView affine_rows(const Checkpoint& checkpoint, std::string_view weight_name, std::int64_t n_cols,
                                std::int64_t first_row, std::int64_t n_rows);

/// A scale or bias of these rows that is NaN or infinite.
std::optional<Problem> affine_value_problem(const Checkpoint& checkpoint, std::string_view weight_name,
                                            std::int64_t first_row, std::int64_t n_rows);

}  // namespace kalibri::checkpoint

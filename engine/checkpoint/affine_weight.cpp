#include "engine/checkpoint/affine_weight.hpp"

#include <fmt/format.h>

#include <vector>

#include "engine/checkpoint/values.hpp"

namespace kalibri::checkpoint {

namespace {

Problem problem_in(const TensorView& tensor, std::string_view name, std::string text) {
  return {tensor.file->path().filename().string(), std::string(name), std::move(text)};
}

/// The scales or biases `name` of a weight: one for each of a row's groups, in the dtype of the other: MLX makes both
/// in that of the weight.
std::optional<Problem> grid_problem(const Checkpoint& checkpoint, const std::string& name,
                                    const std::vector<std::int64_t>& shape, std::optional<Dtype> other) {
  const TensorView* grid = checkpoint.find(name);
  const char* why = "one for each group of the packed codes beside it";
  if (grid == nullptr) return Problem{"", name, fmt::format("missing, expected {} ({})", shape_text(shape), why)};
  if (grid->shape != shape) {
    return problem_in(*grid, name,
                      fmt::format("shape {}, expected {} ({})", shape_text(grid->shape), shape_text(shape), why));
  }
  if (grid->dtype != Dtype::bf16 && grid->dtype != Dtype::f32) {
    return problem_in(*grid, name, fmt::format("dtype {}, expected BF16 or F32", dtype_name(grid->dtype)));
  }
  if (other && grid->dtype != *other) {
    return problem_in(*grid, name,
                      fmt::format("dtype {}, but the scales are {}", dtype_name(grid->dtype), dtype_name(*other)));
  }
  return {};
}

std::int64_t n_rows_of(const TensorView& tensor) {
  return tensor.shape.back() == 0 ? 0 : tensor.n_elements() / tensor.shape.back();
}

/// Rows of a tensor as a tensor of their own.
TensorView rows_in(const TensorView& tensor, std::int64_t first, std::int64_t n) {
  TensorView rows = tensor;
  const std::size_t row_bytes =
      tensor.bytes.size() / static_cast<std::size_t>(std::max<std::int64_t>(n_rows_of(tensor), 1));
  rows.shape = {n, tensor.shape.back()};
  rows.bytes =
      tensor.bytes.subspan(static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(n) * row_bytes);
  return rows;
}

}  // namespace

std::string_view module_of(std::string_view weight_name) {
  constexpr std::string_view kSuffix = ".weight";
  return weight_name.ends_with(kSuffix) ? weight_name.substr(0, weight_name.size() - kSuffix.size()) : weight_name;
}

std::string affine_scales_name(std::string_view weight_name) { return std::string(module_of(weight_name)) + ".scales"; }

std::string affine_biases_name(std::string_view weight_name) { return std::string(module_of(weight_name)) + ".biases"; }

bool is_affine(const Checkpoint& checkpoint, std::string_view weight_name) {
  const TensorView* weight = checkpoint.find(weight_name);
  return weight != nullptr &&
         (weight->dtype == Dtype::u32 || checkpoint.find(affine_scales_name(weight_name)) != nullptr ||
          checkpoint.find(affine_biases_name(weight_name)) != nullptr);
}

std::optional<Problem> affine_problem(const Checkpoint& checkpoint, std::string_view name,
                                      std::span<const std::int64_t> shape) {
  const TensorView& weight = *checkpoint.find(name);
  const std::string_view module = module_of(name);
  if (weight.dtype != Dtype::u32) {
    const bool has_scales = checkpoint.find(affine_scales_name(name)) != nullptr;
    return problem_in(weight, name,
                      fmt::format("dtype {}, but {} makes it packed codes, expected U32", dtype_name(weight.dtype),
                                  has_scales ? affine_scales_name(name) : affine_biases_name(name)));
  }
  if (!checkpoint.affine()) {
    return problem_in(weight, name,
                      "packed codes (U32), but config.json has no 'quantization' that says of how many bits");
  }
  const std::optional<AffineFormat> format = checkpoint.affine()->of(module);
  if (!format) {
    return problem_in(weight, name,
                      fmt::format("packed codes (U32), but config.json's quantization has {}: false", module));
  }
  const std::int64_t n_cols = shape.back();
  if (n_cols % format->group_size != 0) {
    return problem_in(weight, name,
                      fmt::format("packed codes (U32), but groups of {} do not divide its {} columns "
                                  "(config.json quantization)",
                                  format->group_size, n_cols));
  }
  std::vector<std::int64_t> expected(shape.begin(), shape.end());
  expected.back() = n_cols * format->bits / 32;
  if (weight.shape != expected) {
    return problem_in(weight, name,
                      fmt::format("shape {}, expected {} ({} columns of {} bits: config.json quantization)",
                                  shape_text(weight.shape), shape_text(expected), n_cols, format->bits));
  }
  expected.back() = n_cols / format->group_size;
  if (auto problem = grid_problem(checkpoint, affine_scales_name(name), expected, {})) return problem;
  return grid_problem(checkpoint, affine_biases_name(name), expected, checkpoint.find(affine_scales_name(name))->dtype);
}

kernels::MatrixView affine_rows(const Checkpoint& checkpoint, std::string_view name, std::int64_t n_cols,
                                std::int64_t first_row, std::int64_t n_rows) {
  const AffineFormat format = *checkpoint.affine()->of(module_of(name));
  const TensorView& scales = *checkpoint.find(affine_scales_name(name));
  const TensorView& weight = *checkpoint.find(name);
  const kernels::MatrixView all{
      .format = kernels::Format::affine,
      .n_rows = n_rows_of(weight),
      .n_cols = n_cols,
      .data = weight.bytes.data(),
      .bits = format.bits,
      .group_size = format.group_size,
      .scales = scales.bytes.data(),
      .biases = checkpoint.find(affine_biases_name(name))->bytes.data(),
      .grid_format = scales.dtype == Dtype::f32 ? kernels::Format::f32 : kernels::Format::bf16};
  return kernels::rows_of(all, first_row, n_rows);
}

std::optional<Problem> affine_value_problem(const Checkpoint& checkpoint, std::string_view name, std::int64_t first_row,
                                            std::int64_t n_rows) {
  for (const std::string& grid_name : {affine_scales_name(name), affine_biases_name(name)}) {
    const TensorView& grid = *checkpoint.find(grid_name);
    const TensorView rows = rows_in(grid, first_row, n_rows);
    const std::int64_t at = find_not_finite(rows);
    if (at < 0) continue;
    return problem_in(grid, grid_name,
                      fmt::format("NaN or infinity at {}, expected numbers",
                                  index_text(first_row * rows.shape.back() + at, grid.shape)));
  }
  return {};
}

}  // namespace kalibri::checkpoint

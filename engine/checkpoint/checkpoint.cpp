#include "engine/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/base/error.hpp"
#include "engine/checkpoint/affine_weight.hpp"
#include "engine/checkpoint/json.hpp"
#include "engine/checkpoint/shard_list.hpp"
#include "engine/checkpoint/values.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::checkpoint {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(ErrorCode code, const fs::path& path, const std::string& text) {
  throw Error(code, fmt::format("{}: {}", path.string(), text));
}

Problem problem_in(const TensorView& tensor, std::string_view name, std::string text) {
  return {tensor.file->path().filename().string(), std::string(name), std::move(text)};
}

bool is_aligned(const TensorView& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % alignof(float) == 0;
}

bool is_scale_dtype(Dtype dtype) { return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16; }

std::int64_t n_blocks(std::int64_t n) { return (n + kernels::kFp8Block - 1) / kernels::kFp8Block; }

}  // namespace

std::string scale_name(std::string_view weight_name) { return std::string(weight_name) + "_scale_inv"; }

Checkpoint Checkpoint::open(const fs::path& directory) {
  std::error_code ignored;  // what cannot be looked at is not there; opening it says why
  if (!fs::is_directory(directory, ignored)) {
    fail(ErrorCode::file, directory,
         "is no directory; give the folder that holds config.json and the safetensors files");
  }
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  {
    const MappedFile file(directory / "config.json");
    checkpoint.config_bytes_.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    checkpoint.config_ = parse_json(file.bytes(), file.path());
    if (!checkpoint.config_.is_object()) fail(ErrorCode::format, file.path(), "is no JSON object");
    checkpoint.affine_ = AffineConfig::from_json(checkpoint.config_, file.path().string());
  }

  const ShardList list = find_shards(directory);
  checkpoint.index_total_size_ = list.total_size;
  checkpoint.shards_.reserve(list.files.size());
  for (const std::string& file : list.files) {
    const SafetensorsFile& shard = checkpoint.shards_.emplace_back(directory / file);
    for (const auto& [tensor_name, tensor] : shard.tensors()) {
      const auto [place, is_new] = checkpoint.tensors_.emplace(tensor_name, &tensor);
      if (!is_new) {
        fail(ErrorCode::format, shard.path(),
             fmt::format("{}: also in {}", printable(tensor_name), place->second->file->path().filename().string()));
      }
      const bool in_place = tensor.dtype == Dtype::f32 && is_aligned(tensor);
      if (tensor_name.ends_with(".weight_scale_inv") && is_scale_dtype(tensor.dtype) && !in_place) {
        checkpoint.widened_scales_.emplace(&tensor, read_widened(tensor));
      }
    }
  }
  check_index(list, directory, checkpoint.tensors_);
  checkpoint.check_affine_modules();
  return checkpoint;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

const TensorView& Checkpoint::require(std::string_view name, std::span<const std::int64_t> shape,
                                      std::string_view why) const {
  throw_if(shape_problem(name, shape, why));
  return *find(name);
}

kernels::MatrixView Checkpoint::matrix(std::string_view name, std::int64_t n_rows, std::int64_t n_cols,
                                       bool check_values) const {
  throw_if(matrix_problem(name, n_rows, n_cols, check_values));
  const TensorView& weight = *find(name);
  if (weight.dtype == Dtype::u32) return affine_rows(*this, name, n_cols, 0, n_rows);
  kernels::MatrixView view{.n_rows = n_rows, .n_cols = n_cols, .data = weight.bytes.data()};
  if (weight.dtype == Dtype::f8_e4m3) {
    view.format = kernels::Format::e4m3_block;
    view.scale_inv = scales(*find(scale_name(name)));
  } else {
    view.format = weight.dtype == Dtype::bf16 ? kernels::Format::bf16 : kernels::Format::f32;
  }
  return view;
}

kernels::MatrixView Checkpoint::unscaled_matrix(std::string_view name, std::int64_t n_rows, std::int64_t n_cols) const {
  throw_if(unscaled_problem(name, std::array{n_rows, n_cols}, /*check_values=*/true));
  return matrix(name, n_rows, n_cols, /*check_values=*/false);
}

kernels::MatrixView Checkpoint::plain_matrix(std::string_view name, std::int64_t n_rows, std::int64_t n_cols) const {
  throw_if(small_tensor_problem(name, std::array{n_rows, n_cols}));
  return matrix(name, n_rows, n_cols, /*check_values=*/false);
}

kernels::MatrixView Checkpoint::stacked_matrix(std::string_view name, std::int64_t n, std::int64_t n_rows,
                                               std::int64_t n_cols, std::int64_t index, bool check_values) const {
  throw_if(unscaled_problem(name, std::array{n, n_rows, n_cols}, /*check_values=*/false));
  const TensorView& stack = *find(name);
  if (stack.dtype == Dtype::u32) {
    if (check_values) throw_if(affine_value_problem(*this, name, index * n_rows, n_rows));
    return affine_rows(*this, name, n_cols, index * n_rows, n_rows);
  }
  const kernels::MatrixView all{.format = stack.dtype == Dtype::bf16 ? kernels::Format::bf16 : kernels::Format::f32,
                                .n_rows = n * n_rows,
                                .n_cols = n_cols,
                                .data = stack.bytes.data()};
  return kernels::rows_of(all, index * n_rows, n_rows);
}

std::vector<float> Checkpoint::vector(std::string_view name, std::int64_t n) const {
  return small_tensor(name, std::array{n});
}

std::vector<float> Checkpoint::small_tensor(std::string_view name, std::span<const std::int64_t> shape) const {
  throw_if(small_tensor_problem(name, shape));
  return read_widened(*find(name));
}

std::vector<float> Checkpoint::f32_vector(std::string_view name, std::int64_t n) const {
  throw_if(f32_problem(name, std::array{n}));
  return read_widened(*find(name));
}

float Checkpoint::scalar(std::string_view name) const {
  throw_if(scalar_problem(name));
  return read_widened(*find(name)).front();
}

std::vector<std::int64_t> Checkpoint::integers(std::string_view name, std::int64_t n) const {
  throw_if(integers_problem(name, n));
  const TensorView& tensor = *find(name);
  std::vector<std::int64_t> values(static_cast<std::size_t>(n));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

std::optional<Problem> Checkpoint::shape_problem(std::string_view name, std::span<const std::int64_t> shape,
                                                 std::string_view why) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    return Problem{"", std::string(name), fmt::format("missing, expected {} ({})", shape_text(shape), why)};
  }
  if (std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) return {};
  return problem_in(*tensor, name,
                    fmt::format("shape {}, expected {} ({})", shape_text(tensor->shape), shape_text(shape), why));
}

std::optional<Problem> Checkpoint::small_tensor_problem(std::string_view name,
                                                        std::span<const std::int64_t> shape) const {
  if (auto problem = shape_problem(name, shape, "config.json")) return problem;
  const TensorView& tensor = *find(name);
  if (tensor.dtype == Dtype::bf16 || tensor.dtype == Dtype::f32) return stray_scales_problem(tensor, name);
  return problem_in(tensor, name, fmt::format("dtype {}, expected BF16 or F32", dtype_name(tensor.dtype)));
}

std::optional<Problem> Checkpoint::f32_problem(std::string_view name, std::span<const std::int64_t> shape) const {
  if (auto problem = small_tensor_problem(name, shape)) return problem;
  const TensorView& tensor = *find(name);
  if (tensor.dtype == Dtype::f32) return {};
  return problem_in(tensor, name, fmt::format("dtype {}, expected F32", dtype_name(tensor.dtype)));
}

std::optional<Problem> Checkpoint::scalar_problem(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) return Problem{"", std::string(name), "missing, expected one number"};
  if (tensor->n_elements() != 1 || !is_scale_dtype(tensor->dtype)) {
    return problem_in(*tensor, name,
                      fmt::format("{} {}, expected one BF16, F16 or F32 number", dtype_name(tensor->dtype),
                                  shape_text(tensor->shape)));
  }
  const float value = read_widened(*tensor).front();
  if (std::isfinite(value)) return {};
  return problem_in(*tensor, name, fmt::format("{}, expected a finite number", value));
}

std::optional<Problem> Checkpoint::integers_problem(std::string_view name, std::int64_t n) const {
  if (auto problem = shape_problem(name, std::array{n}, "config.json")) return problem;
  const TensorView& tensor = *find(name);
  if (tensor.dtype == Dtype::i64) return {};
  return problem_in(tensor, name, fmt::format("dtype {}, expected I64", dtype_name(tensor.dtype)));
}

std::optional<Problem> Checkpoint::matrix_problem(std::string_view name, std::int64_t n_rows, std::int64_t n_cols,
                                                  bool check_values) const {
  if (is_affine(*this, name)) return unscaled_problem(name, std::array{n_rows, n_cols}, check_values);
  if (auto problem = shape_problem(name, std::array{n_rows, n_cols}, "config.json")) return problem;
  const TensorView& weight = *find(name);
  if (weight.dtype == Dtype::bf16 || weight.dtype == Dtype::f32) return stray_scales_problem(weight, name);
  if (weight.dtype != Dtype::f8_e4m3) {
    return problem_in(weight, name, fmt::format("dtype {}, expected BF16, F32 or F8_E4M3", dtype_name(weight.dtype)));
  }

  const std::string name_of_scale = scale_name(name);
  if (auto problem = shape_problem(name_of_scale, std::array{n_blocks(n_rows), n_blocks(n_cols)},
                                   "a scale for each 128 x 128 block of the F8_E4M3 weight")) {
    return problem;
  }
  const TensorView& scale = *find(name_of_scale);
  if (!is_scale_dtype(scale.dtype)) {
    return problem_in(scale, name_of_scale,
                      fmt::format("dtype {}, expected F32, BF16 or F16", dtype_name(scale.dtype)));
  }
  if (!check_values) return {};
  if (auto problem = block_scales_problem(name)) return problem;
  const std::int64_t at = find_not_finite(weight);
  if (at < 0) return {};
  return problem_in(weight, name, fmt::format("NaN code at {}, expected numbers", index_text(at, weight.shape)));
}

std::optional<Problem> Checkpoint::block_scales_problem(std::string_view name) const {
  const std::string name_of_scale = scale_name(name);
  const TensorView* scale = find(name_of_scale);
  if (scale == nullptr) return {};
  const std::vector<float> values = read_widened(*scale);
  const auto bad = std::find_if_not(values.begin(), values.end(), is_block_scale);
  if (bad == values.end()) return {};
  return problem_in(*scale, name_of_scale,
                    fmt::format("{} for block {}, expected a number between -65536 and 65536", *bad,
                                index_text(bad - values.begin(), scale->shape)));
}

std::optional<Problem> Checkpoint::stray_scales_problem(const TensorView& tensor, std::string_view name) const {
  const std::string name_of_scale = scale_name(name);
  const TensorView* scale = find(name_of_scale);
  if (scale == nullptr) return {};
  return problem_in(
      *scale, name_of_scale,
      fmt::format("block scales of a weight that is {}, expected none or an F8_E4M3 weight", dtype_name(tensor.dtype)));
}

std::optional<Problem> Checkpoint::unscaled_problem(std::string_view name, std::span<const std::int64_t> shape,
                                                    bool check_values) const {
  if (!is_affine(*this, name)) return small_tensor_problem(name, shape);
  if (auto problem = affine_problem(*this, name, shape)) return problem;
  if (auto problem = stray_scales_problem(*find(name), name)) return problem;
  if (!check_values) return {};
  std::int64_t n_rows = 1;
  for (const std::int64_t n : shape.first(shape.size() - 1)) n_rows *= n;
  return affine_value_problem(*this, name, 0, n_rows);
}

const float* Checkpoint::scales(const TensorView& tensor) const {
  const auto copy = widened_scales_.find(&tensor);
  return copy != widened_scales_.end() ? copy->second.data() : reinterpret_cast<const float*>(tensor.bytes.data());
}

void Checkpoint::check_affine_modules() const {
  if (!affine_) return;
  for (const auto& [module, format] : affine_->modules()) {
    if (find(module + ".weight") != nullptr) continue;
    fail(ErrorCode::config, directory_ / "config.json",
         fmt::format("quantization.{0}: no such module: the shards hold no {0}.weight; correct the name or take the "
                     "entry out",
                     printable(module)));
  }
}

void Checkpoint::throw_if(const std::optional<Problem>& problem) const {
  if (problem) refuse(*problem);
}

void Checkpoint::refuse(const Problem& problem) const {
  throw Error(ErrorCode::tensor,
              fmt::format("{}{}{}: {}; incomplete, damaged or another family: run 'kalibri inspect {}'", problem.file,
                          problem.file.empty() ? "" : ": ", problem.tensor, problem.text, directory_.string()));
}

}  // namespace kalibri::checkpoint

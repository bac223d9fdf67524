#include "engine/model/swiglu_weights.hpp"

#include "engine/base/mapped_file.hpp"

namespace kalibri::model {

runtime::ExpertWeights find_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t width, bool check_values) {
  return {checkpoint.matrix(prefix + "gate_proj.weight", width, hidden_size, check_values),
          checkpoint.matrix(prefix + "up_proj.weight", width, hidden_size, check_values),
          checkpoint.matrix(prefix + "down_proj.weight", hidden_size, width, check_values)};
}

runtime::ExpertWeights find_stacked_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                           std::int64_t n_experts, std::int64_t hidden_size, std::int64_t width,
                                           std::int64_t index, bool check_values) {
  const auto find = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
    return checkpoint.stacked_matrix(prefix + name, n_experts, n_rows, n_cols, index, check_values);
  };
  return {find("gate_proj.weight", width, hidden_size), find("up_proj.weight", width, hidden_size),
          find("down_proj.weight", hidden_size, width)};
}

void classify_weights(const checkpoint::Checkpoint& checkpoint, const std::vector<checkpoint::ExpectedTensor>& tensors,
                      runtime::WeightForms& forms) {
  for (const checkpoint::ExpectedTensor& expected : tensors) {
    const checkpoint::WeightClass weights = checkpoint::weight_class(expected);
    const checkpoint::TensorView* tensor = checkpoint.find(expected.name);
    if (weights != checkpoint::WeightClass::none && tensor != nullptr) forms.classify(tensor->bytes.data(), weights);
  }
}

void forget_swiglu(const runtime::ExpertWeights& expert) {
  const auto forget = [](const void* data, std::int64_t n_bytes) {
    forget_pages({static_cast<const std::byte*>(data), static_cast<std::size_t>(n_bytes)});
  };
  for (const kernels::MatrixView& matrix : {expert.gate, expert.up, expert.down}) {
    forget(matrix.data, kernels::stored_bytes(matrix));
    if (matrix.format != kernels::Format::affine) continue;
    forget(matrix.scales, matrix.n_rows * kernels::grid_row_bytes(matrix));
    forget(matrix.biases, matrix.n_rows * kernels::grid_row_bytes(matrix));
  }
}

}  // namespace kalibri::model

#include "engine/model/swiglu_weights.hpp"

#include <algorithm>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/checkpoint/tensor_places.hpp"
#include "engine/model/weight_places.hpp"
#include "engine/runtime/formed_matrix.hpp"
#include "engine/runtime/resident_experts.hpp"
#include "engine/runtime/streamed_experts.hpp"

namespace kalibri::model {

namespace {

void forget_swiglu(const runtime::ExpertWeights& expert) {
  for (const kernels::MatrixView& matrix : {expert.gate, expert.up, expert.down}) forget_matrix(matrix);
}

bool is_used_as_stored(const runtime::WeightForm& wanted, const runtime::ExpertWeights& expert) {
  for (const kernels::MatrixView& matrix : {expert.gate, expert.up, expert.down}) {
    if (form_for(wanted, matrix).kind != runtime::WeightForm::Kind::native) return false;
  }
  return true;
}

}  // namespace

runtime::ExpertWeights find_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t width, bool check_values) {
  const auto find = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
    const kernels::MatrixView matrix = checkpoint.matrix(prefix + name, n_rows, n_cols, check_values);
    if (matrix.format == kernels::Format::e4m3_block && !check_values) {
      if (const auto problem = checkpoint.block_scales_problem(prefix + name)) checkpoint.refuse(*problem);
    }
    return matrix;
  };
  return {find("gate_proj.weight", width, hidden_size), find("up_proj.weight", width, hidden_size),
          find("down_proj.weight", hidden_size, width)};
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

std::unique_ptr<runtime::ExpertStore> make_expert_store(const checkpoint::Checkpoint& checkpoint,
                                                        std::vector<std::vector<runtime::ExpertWeights>> experts,
                                                        const runtime::WeightForms& forms,
                                                        std::function<void(std::int64_t, std::int64_t)> check,
                                                        const runtime::ExpertCacheOptions& cache, bool are_in_memory) {
  const bool can_be_cached = std::ranges::all_of(experts, [&](const auto& layer) {
    return std::ranges::all_of(
        layer, [&](const auto& expert) { return is_used_as_stored(forms.precision().experts, expert); });
  });
  runtime::ExpertCacheOptions options = cache;
  if (are_in_memory && !cache.is_wanted()) {
    options.n_slots = static_cast<std::int64_t>(experts.front().size());
    options.mode = runtime::ReadMode::buffered;  // the next run finds them in the system's file cache
    options.is_optional = true;
  }
  if (!options.is_wanted() || (!can_be_cached && options.is_optional)) {
    return std::make_unique<runtime::ResidentExperts>(std::move(experts), forms, std::move(check), forget_swiglu);
  }
  if (!can_be_cached) {
    throw Error(ErrorCode::usage, "an expert cache holds experts as they are stored, but precision " +
                                      forms.precision().text() +
                                      " makes another form of them: leave one of the two out, or take "
                                      "experts=native");
  }
  return std::make_unique<runtime::StreamedExperts>(experts, checkpoint::TensorPlaces(checkpoint), options,
                                                    std::move(check));
}

}  // namespace kalibri::model

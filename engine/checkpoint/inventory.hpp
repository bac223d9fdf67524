// What a checkpoint directory must hold for its model family: every tensor's name, shape and kind. `inspect` compares
// it with what is there; the model's loader asks for the same names.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/kolibri1_config.hpp"

namespace kalibri::checkpoint {

/// What a tensor is for; sizes are summed by it.
enum class TensorKind : std::uint8_t { embedding, head, attention, router, expert, shared_expert, norm, scale, other };
std::string_view tensor_kind_name(TensorKind kind);

struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // [n] or [out, in]
  TensorKind kind = TensorKind::other;
  bool may_be_fp8 = false;  // a linear weight that may be stored as f8_e4m3 with weight_scale_inv
};

/// Sums over the tensors of one kind that are there.
struct KindSum {
  std::int64_t n_tensors = 0;
  std::int64_t n_elements = 0;
  std::int64_t n_bytes = 0;
  std::set<Dtype> dtypes;
};

struct Inventory {
  std::string model_type;
  std::string summary;  // the architecture in one line
  std::map<TensorKind, KindSum> kinds;
  std::vector<Problem> problems;  // missing, wrong shape or dtype, scale missing, bad FP8 values (when looked for)
  std::vector<std::string> unexpected;  // tensors that the family does not know
  std::vector<std::string> notes;  // unknown config keys, files left aside, dtypes that config.json tells otherwise

  /// Elements of all weights; scales and unexpected tensors are not parameters.
  [[nodiscard]] std::int64_t n_parameters() const;
};

/// Compares the checkpoint with what its config.json asks for. `check_values`: also read every FP8 matrix, as
/// Checkpoint::matrix does. Throws Error(config) when config.json itself cannot be used or names an
/// unknown family.
Inventory take_inventory(const Checkpoint& checkpoint, bool check_values);

/// The tensors of a Kolibri 1 checkpoint in the released layout (weights; scales follow from the dtype).
std::vector<ExpectedTensor> kolibri1_tensors(const Kolibri1Config& config);

}  // namespace kalibri::checkpoint

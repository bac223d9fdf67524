// What a checkpoint directory must hold for its model family: every tensor's name, shape and kind. `inspect` compares
// it with what is there; the model's loader asks for the same names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"

namespace kalibri::checkpoint {

/// What a tensor is for; sizes are summed by it.
enum class TensorKind : std::uint8_t { embedding, head, attention, router, expert, shared_expert, norm, scale, other };
std::string_view tensor_kind_name(TensorKind kind);

struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  TensorKind kind = TensorKind::other;
  bool may_be_fp8 = false;  // a linear weight that may be stored as f8_e4m3 with weight_scale_inv
};

struct Problem {
  std::string tensor;
  std::string text;
};

struct Inventory {
  std::string model_type;
  std::int64_t n_parameters = 0;
  std::map<TensorKind, std::int64_t> bytes_by_kind;
  std::map<TensorKind, std::int64_t> tensors_by_kind;
  std::vector<Problem> problems;        // missing, wrong shape, wrong dtype, scale missing, NaN code (when looked for)
  std::vector<std::string> unexpected;  // tensors that the family does not know
  std::vector<std::string> notes;       // defaults used, unknown config keys, modules_to_not_convert that disagrees
};

/// Compares the checkpoint with what its config.json asks for. `check_codes`: also read every FP8 byte for NaN codes.
/// Throws Error(config) when config.json itself cannot be used or names an unknown family.
Inventory take_inventory(const Checkpoint& checkpoint, bool check_codes);

/// The tensors of a Kolibri 1 checkpoint in the released layout (weights; scales follow from the dtype).
struct Kolibri1Config;
std::vector<ExpectedTensor> kolibri1_tensors(const Kolibri1Config& config);

}  // namespace kalibri::checkpoint

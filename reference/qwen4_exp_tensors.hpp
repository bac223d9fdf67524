// How the blocks of qwen4_exp find their tensors: by names below a prefix, in the forms that the family has.
#pragma once

#include <string>

#include "reference/checkpoint.hpp"
#include "reference/precision.hpp"
#include "reference/qwen4_exp_config.hpp"
#include "reference/stored_matrix.hpp"

namespace kalibri::reference {

struct Qwen4ExpTensors {
  const Checkpoint& checkpoint;
  const Qwen4ExpConfig& config;
  const Precision& precision;
  std::string prefix;  // "model.layers.3."

  [[nodiscard]] Qwen4ExpTensors below(const std::string& part) const {
    return {checkpoint, config, precision, prefix + part};
  }
  /// bf16, f32, packed, or FP8 with block scales where config.json announces blocks; in the form of the dense ones.
  /// Throws Error, as all of these.
  [[nodiscard]] StoredMatrix matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols) const;
  [[nodiscard]] StoredMatrix vector(const std::string& name, std::int64_t n) const {
    return find_vector(checkpoint, prefix + name, n);
  }
  /// The weight [n, 1, kernel] of a depthwise convolution as a matrix [n, kernel].
  [[nodiscard]] StoredMatrix taps(const std::string& name, std::int64_t n, std::int64_t kernel) const {
    return find_stack(checkpoint, prefix + name, n, 1, kernel);
  }
};

}  // namespace kalibri::reference

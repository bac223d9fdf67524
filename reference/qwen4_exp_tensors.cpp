#include "reference/qwen4_exp_tensors.hpp"

#include <fmt/format.h>

#include "reference/error.hpp"

namespace kalibri::reference {

StoredMatrix Qwen4ExpTensors::matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols) const {
  const StoredMatrix found = find_matrix(checkpoint, prefix + name, n_rows, n_cols);
  if (found.scale_inv != nullptr && !config.has_block_scales) {
    throw Error(fmt::format("{}: {}: is FP8, but config.json has no quantization_config with weight_block_size",
                            found.weight->file, found.weight->name));
  }
  return in_form(found, precision.dense);
}

}  // namespace kalibri::reference

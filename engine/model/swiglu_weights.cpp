#include "engine/model/swiglu_weights.hpp"

namespace kalibri::model {

runtime::ExpertWeights find_swiglu(const checkpoint::Checkpoint& checkpoint, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t width, bool check_values) {
  return {checkpoint.matrix(prefix + "gate_proj.weight", width, hidden_size, check_values),
          checkpoint.matrix(prefix + "up_proj.weight", width, hidden_size, check_values),
          checkpoint.matrix(prefix + "down_proj.weight", hidden_size, width, check_values)};
}

}  // namespace kalibri::model

#include "reference/expert_weights.hpp"

#include <fmt/format.h>

#include "reference/error.hpp"

namespace kalibri::reference {

Expert in_form(const Expert& expert, const WeightForm& form) {
  return {in_form(expert.gate_proj, form), in_form(expert.up_proj, form), in_form(expert.down_proj, form)};
}

bool is_stacked(const Checkpoint& checkpoint, const std::string& stack, const std::string& single) {
  if (!checkpoint.has_below(stack)) return false;
  if (!checkpoint.has_below(single)) return true;
  throw Error(fmt::format("{}: the experts are there twice, below {} and below {}", checkpoint.directory().string(),
                          stack, single));
}

std::vector<Expert> find_stacked_experts(const Checkpoint& checkpoint, const std::string& stack, std::int64_t n_experts,
                                         std::int64_t width, std::int64_t hidden_size) {
  const StoredMatrix gate = find_stack(checkpoint, stack + "gate_proj.weight", n_experts, width, hidden_size);
  const StoredMatrix up = find_stack(checkpoint, stack + "up_proj.weight", n_experts, width, hidden_size);
  const StoredMatrix down = find_stack(checkpoint, stack + "down_proj.weight", n_experts, hidden_size, width);
  std::vector<Expert> experts;
  for (std::int64_t e = 0; e < n_experts; ++e) {
    experts.push_back({slice_rows(gate, e * width, width), slice_rows(up, e * width, width),
                       slice_rows(down, e * hidden_size, hidden_size)});
  }
  return experts;
}

}  // namespace kalibri::reference

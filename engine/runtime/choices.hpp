// Another run's discrete choices, put in place of a model's own: so that a tie upstream does not blame what follows.
#pragma once

#include <cstdint>
#include <span>

namespace kalibri::runtime {

class ForcedChoices {
 public:
  virtual ~ForcedChoices() = default;
  /// The experts [top_k] of the token at `pos`, or empty: the model chooses. Weights are the model's own either way.
  [[nodiscard]] virtual std::span<const std::int32_t> experts(std::int64_t layer, std::int64_t pos) const = 0;
  /// The blocks that the query at `pos` attends to, ascending; `given` false: the model chooses.
  struct Blocks {
    bool given = false;
    std::span<const std::int32_t> ids;
  };
  [[nodiscard]] virtual Blocks blocks(std::int64_t layer, std::int64_t pos) const = 0;
};

}  // namespace kalibri::runtime

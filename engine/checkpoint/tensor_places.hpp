// Which tensor a pointer into a mapped checkpoint belongs to, and where in which file that is: for whoever reads a
// weight in another way than through the mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"

namespace kalibri::checkpoint {

class TensorPlaces {
 public:
  /// The checkpoint must outlive this.
  explicit TensorPlaces(const Checkpoint& checkpoint);

  struct Place {
    std::string_view tensor;
    const MappedFile* file = nullptr;
    std::uint64_t offset = 0;  // in the file
  };
  /// Nothing for data outside the mapped tensors (widened scales are copies).
  [[nodiscard]] std::optional<Place> find(const void* data) const;

 private:
  struct Tensor {
    const std::byte* begin = nullptr;
    std::string_view name;
    const TensorView* view = nullptr;
  };
  std::vector<Tensor> tensors_;  // by begin
};

}  // namespace kalibri::checkpoint

#include "engine/checkpoint/tensor_places.hpp"

#include <algorithm>

namespace kalibri::checkpoint {

TensorPlaces::TensorPlaces(const Checkpoint& checkpoint) {
  for (const auto& [name, view] : checkpoint.tensors()) {
    if (!view->bytes.empty()) tensors_.push_back({view->bytes.data(), name, view});
  }
  std::ranges::sort(tensors_, {}, &Tensor::begin);
}

std::optional<TensorPlaces::Place> TensorPlaces::find(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  const auto behind = std::ranges::upper_bound(tensors_, at, {}, &Tensor::begin);
  if (behind == tensors_.begin()) return {};
  const Tensor& tensor = *(behind - 1);
  const auto offset = at - tensor.begin;
  if (offset >= static_cast<std::ptrdiff_t>(tensor.view->bytes.size())) return {};
  return Place{tensor.name, tensor.view->file, static_cast<std::uint64_t>(tensor.view->file_offset + offset)};
}

}  // namespace kalibri::checkpoint

// What of which files one expert is made of, and its matrices once that has been read somewhere else. It reads nothing
// but scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_places.hpp"
#include "engine/runtime/expert_store.hpp"

namespace kalibri::runtime {

/// A run of a file's bytes, and where it goes in a slot.
struct ExpertExtent {
  const MappedFile* file = nullptr;
  std::uint64_t offset = 0;  // in the file
  std::size_t n_bytes = 0;
  std::size_t slot_offset = 0;  // the same as `offset` modulo kDirectBlock
  const std::byte* mapped = nullptr;
  std::string_view tensor;  // that it begins with
};

class ExpertSource {
 public:
  /// `stored`: the expert's matrices where they are mapped. Codes, and scales and biases of affine codes, are read
  /// together where little lies between them; the FP8 scales are few and stay in memory.
  ExpertSource(const ExpertWeights& stored, const checkpoint::TensorPlaces& places);

  [[nodiscard]] const std::vector<ExpertExtent>& extents() const { return extents_; }
  /// A multiple of kDirectBlock.
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }

  /// The matrices in a slot into which the extents have been read. At the first call the scales are read and all values
  /// looked at. Several threads may call it at once. Throws Error(file); where a value is NaN or infinite, or a block
  /// scale none that the kernels take, what `refuse()` throws.
  template <typename Refuse>
  ExpertWeights in_slot(const std::byte* slot, Refuse&& refuse) {
    std::call_once(checked_, [&] {
      read_scales(slot);
      if (!has_only_numbers(views(slot))) refuse();
    });
    return views(slot);
  }

 private:
  [[nodiscard]] const std::byte* find_in_slot(const std::byte* slot, const void* mapped) const;
  [[nodiscard]] ExpertWeights views(const std::byte* slot) const;
  [[nodiscard]] static bool has_only_numbers(const ExpertWeights& weights);
  void read_scales(const std::byte* slot);

  /// The mapped FP8 scales of one matrix; none when they are a copy already.
  struct Scales {
    const MappedFile* file = nullptr;
    std::uint64_t offset = 0;
    std::vector<float> values;
  };

  ExpertWeights stored_;
  std::vector<ExpertExtent> extents_;
  std::size_t slot_bytes_ = 0;
  Scales scales_[3];  // of gate, up, down
  std::once_flag checked_;
};

}  // namespace kalibri::runtime

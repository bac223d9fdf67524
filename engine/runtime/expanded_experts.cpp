#include "engine/runtime/expanded_experts.hpp"

#include "engine/kernels/codec.hpp"

namespace kalibri::runtime {

namespace {

using kernels::MatrixView;

std::int64_t n_expanded(const MatrixView& stored) {
  return stored.format == kernels::Format::f32 ? 0 : stored.n_rows * stored.n_cols;
}

/// Where `stored` is in f32: in place, or at `room`, which moves on behind it.
MatrixView place(const MatrixView& stored, float*& room) {
  if (stored.format == kernels::Format::f32) return stored;
  const float* values = room;
  room += n_expanded(stored);
  return {kernels::Format::f32, stored.n_rows, stored.n_cols, values, nullptr};
}

void expand(const MatrixView& stored, float*& room) {
  if (stored.format == kernels::Format::f32) return;
  for (std::int64_t row = 0; row < stored.n_rows; ++row, room += stored.n_cols) kernels::decode_row(stored, row, room);
}

}  // namespace

ExpertWeights ExpandedExperts::acquire(std::int64_t layer, std::int64_t expert, const ExpertWeights& stored) {
  const std::int64_t n_values = n_expanded(stored.gate) + n_expanded(stored.up) + n_expanded(stored.down);
  if (n_values == 0) return stored;
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Entry>& slot = entries_[{layer, expert}];
    if (slot == nullptr) slot = std::make_unique<Entry>();
    entry = slot.get();
    erase(usage_.acquire({layer, expert}, n_values * static_cast<std::int64_t>(sizeof(float))));
  }
  std::call_once(entry->made, [&] {
    entry->values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n_values));
    float* room = entry->values.get();
    for (const MatrixView& matrix : {stored.gate, stored.up, stored.down}) expand(matrix, room);
  });
  float* room = entry->values.get();
  const MatrixView gate = place(stored.gate, room);
  const MatrixView up = place(stored.up, room);
  return {gate, up, place(stored.down, room)};
}

void ExpandedExperts::release(std::int64_t layer, std::int64_t expert) {
  const std::lock_guard lock(mutex_);
  erase(usage_.release({layer, expert}));
}

void ExpandedExperts::leave_layer(std::int64_t layer) {
  const std::lock_guard lock(mutex_);
  usage_.leave_layer(layer);
  entries_.erase(entries_.lower_bound({layer, 0}), entries_.lower_bound({layer + 1, 0}));
}

std::int64_t ExpandedExperts::n_bytes() const {
  const std::lock_guard lock(mutex_);
  return usage_.n_bytes();
}

void ExpandedExperts::erase(const std::vector<ExpertUsage::Key>& gone) {
  for (const ExpertUsage::Key& key : gone) entries_.erase(key);
}

}  // namespace kalibri::runtime

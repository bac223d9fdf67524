#include "engine/runtime/expanded_experts.hpp"

#include "engine/runtime/formed_matrix.hpp"

namespace kalibri::runtime {

namespace {

using kernels::MatrixView;

std::int64_t n_made_bytes(const WeightForm& wanted, const MatrixView& stored) {
  const WeightForm form = form_for(wanted, stored);
  return form.kind == WeightForm::Kind::native ? 0 : formed_bytes(form, stored);
}

/// Where `stored` is in its form: in place, or at `room`, which moves on behind it.
MatrixView place(const WeightForm& wanted, const MatrixView& stored, const unsigned char*& room) {
  const WeightForm form = form_for(wanted, stored);
  if (form.kind == WeightForm::Kind::native) return stored;
  const unsigned char* at = room;
  room += formed_bytes(form, stored);
  return formed_view(form, stored, at);
}

void make(const WeightForm& wanted, const MatrixView& stored, unsigned char*& room) {
  const WeightForm form = form_for(wanted, stored);
  if (form.kind == WeightForm::Kind::native) return;
  form_matrix(form, stored, room);
  room += formed_bytes(form, stored);
}

}  // namespace

ExpertWeights ExpandedExperts::acquire(std::int64_t layer, std::int64_t expert, const ExpertWeights& stored) {
  std::int64_t n_bytes = 0;
  for (const MatrixView& matrix : {stored.gate, stored.up, stored.down}) n_bytes += n_made_bytes(form_, matrix);
  if (n_bytes == 0) return stored;
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Entry>& slot = entries_[{layer, expert}];
    if (slot == nullptr) slot = std::make_unique<Entry>();
    entry = slot.get();
    erase(usage_.acquire({layer, expert}, n_bytes));
  }
  std::call_once(entry->made, [&] {
    entry->bytes = AnonymousMemory(static_cast<std::size_t>(n_bytes));
    auto* room = entry->bytes.as<unsigned char>();
    for (const MatrixView& matrix : {stored.gate, stored.up, stored.down}) make(form_, matrix, room);
  });
  const unsigned char* room = entry->bytes.as<unsigned char>();
  const MatrixView gate = place(form_, stored.gate, room);
  const MatrixView up = place(form_, stored.up, room);
  return {gate, up, place(form_, stored.down, room)};
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

#include "engine/runtime/expert_slots.hpp"

#include <utility>

#include "engine/base/check.hpp"

namespace kalibri::runtime {

std::int32_t ExpertSlots::find(std::int32_t expert) {
  const std::int32_t found = slot_of_[static_cast<std::size_t>(expert)];
  if (found == kNone) return kNone;
  ExpertSlot& slot = (*this)[found];
  ++slot.n_users;
  slot.last_wanted = ++now_;
  return found;
}

std::int32_t ExpertSlots::claim(std::int32_t expert) {
  std::int32_t oldest = kNone;
  for (std::int32_t i = 0; i < n_slots(); ++i) {
    const ExpertSlot& slot = (*this)[i];
    const bool is_free = slot.n_users == 0 && slot.n_parts == 0;
    if (is_free && (oldest == kNone || slot.last_wanted < (*this)[oldest].last_wanted)) oldest = i;
  }
  if (oldest == kNone) return kNone;
  ExpertSlot& slot = (*this)[oldest];
  empty(slot);
  slot = {.expert = expert, .n_users = 1, .last_wanted = ++now_};
  slot_of_[static_cast<std::size_t>(expert)] = oldest;
  return oldest;
}

void ExpertSlots::let_go(std::int32_t index) {
  ExpertSlot& slot = (*this)[index];
  KALIBRI_CHECK(slot.n_users > 0, "an expert is let go as often as it was wanted");
  --slot.n_users;
  if (slot.n_users == 0 && slot.n_parts == 0 && slot.error != nullptr) empty(slot);
}

bool ExpertSlots::arrived(std::int32_t index, std::exception_ptr error) {
  ExpertSlot& slot = (*this)[index];
  KALIBRI_CHECK(slot.n_parts > 0, "a part arrives once");
  if (error != nullptr) slot.error = std::move(error);
  if (--slot.n_parts > 0) return false;
  if (slot.n_users == 0 && slot.error != nullptr) empty(slot);
  return true;
}

bool ExpertSlots::clear() {
  bool is_clear = true;
  for (ExpertSlot& slot : slots_) {
    if (slot.n_users == 0 && slot.n_parts == 0) {
      empty(slot);
    } else {
      is_clear = false;
    }
  }
  return is_clear;
}

void ExpertSlots::empty(ExpertSlot& slot) {
  if (slot.expert != ExpertSlot::kEmpty) slot_of_[static_cast<std::size_t>(slot.expert)] = kNone;
  slot = {};
}

}  // namespace kalibri::runtime

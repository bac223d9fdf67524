// One layer's cache of experts: which expert is in which slot, who wants it, and who has to go for the next one. It
// holds no weights, and one thread at a time may call it.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

namespace kalibri::runtime {

struct ExpertSlot {
  static constexpr std::int32_t kEmpty = -1;
  std::int32_t expert = kEmpty;
  int n_users = 0;  // who want it and have not let go
  int n_parts = 0;  // still to be read
  std::uint64_t last_wanted = 0;
  std::exception_ptr error = {};  // why it could not be read
};

class ExpertSlots {
 public:
  ExpertSlots() = default;
  ExpertSlots(std::int64_t n_experts, std::int64_t n_slots)
      : slots_(static_cast<std::size_t>(n_slots)), slot_of_(static_cast<std::size_t>(n_experts), kNone) {}

  static constexpr std::int32_t kNone = -1;

  /// The slot with this expert, with one user more, or kNone.
  std::int32_t find(std::int32_t expert);
  /// A slot for an expert that has none, with one user: an empty one, or that whose expert has been unwanted longest
  /// and goes. kNone when all are in use.
  std::int32_t claim(std::int32_t expert);
  /// One user less. An expert that could not be read goes with its last user.
  void let_go(std::int32_t slot);
  /// A read has ended: the last part of it when this returns true.
  bool arrived(std::int32_t slot, std::exception_ptr error);
  /// Empties the slots that nobody uses and nothing is read into; returns whether that is all of them.
  bool clear();

  [[nodiscard]] ExpertSlot& operator[](std::int32_t slot) { return slots_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] std::int32_t n_slots() const { return static_cast<std::int32_t>(slots_.size()); }

 private:
  void empty(ExpertSlot& slot);

  std::vector<ExpertSlot> slots_;
  std::vector<std::int32_t> slot_of_;  // by expert
  std::uint64_t now_ = 0;
};

}  // namespace kalibri::runtime

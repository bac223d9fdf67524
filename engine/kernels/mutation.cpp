#include "engine/kernels/mutation.hpp"

#ifdef KALIBRI_MUTANTS

#include <atomic>

namespace kalibri::mutation {

namespace {

std::string chosen;
std::atomic<bool> was_reached{false};

}  // namespace

void activate(const std::string& name) { chosen = name; }

bool active(std::string_view name) {
  if (name != chosen) return false;
  was_reached.store(true, std::memory_order_relaxed);
  return true;
}

bool reached() { return was_reached.load(); }

}  // namespace kalibri::mutation

#endif

// Where a run's time goes, and how many bytes of weights it multiplies with: what a bench asks for. It changes nothing
// that is computed.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace kalibri::runtime {

/// Parts of a forward pass, as the thread that drives it goes through them.
enum class Phase : std::uint8_t {
  other,          // embedding, norms and sums between the others
  mixer,          // projections of attention, DeltaNet, gated residuals, n-gram layers
  attention,      // scores, softmax and values; the delta rule
  router,         // logits and choice
  experts,        // routed: waiting for them, and their arithmetic
  shared_expert,  //
  head,           // logits
};
inline constexpr std::size_t kPhases = 7;
inline constexpr std::array<const char*, kPhases> kPhaseNames = {"other",   "mixer",         "attention", "router",
                                                                 "experts", "shared_expert", "head"};

class PhaseClock {
 public:
  using Seconds = std::array<double, kPhases>;

  /// The time since the last call belongs to the phase of that call. One thread alone.
  void enter(Phase phase) {
    const auto now = std::chrono::steady_clock::now();
    seconds_[static_cast<std::size_t>(phase_)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    phase_ = phase;
  }
  /// Weights that a product reads; any thread.
  void count_weights(std::int64_t n_bytes) { weight_bytes_.fetch_add(n_bytes, std::memory_order_relaxed); }

  /// Starts anew, in phase `other`.
  void reset() {
    seconds_ = {};
    weight_bytes_ = 0;
    since_ = std::chrono::steady_clock::now();
    phase_ = Phase::other;
  }
  [[nodiscard]] const Seconds& seconds() const { return seconds_; }
  [[nodiscard]] std::int64_t weight_bytes() const { return weight_bytes_; }

 private:
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  Phase phase_ = Phase::other;
  Seconds seconds_ = {};
  std::atomic<std::int64_t> weight_bytes_ = 0;
};

}  // namespace kalibri::runtime

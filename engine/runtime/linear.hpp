// Loops over tokens, rows and weight rows on the pool's threads, and products in the run's arithmetic. Each output
// element is computed by one thread in the kernel's order, so the result does not depend on how the work is cut.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/aligned.hpp"
#include "engine/base/thread_pool.hpp"
#include "engine/kernels/codec.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/runtime/arithmetic.hpp"
#include "engine/runtime/phase_clock.hpp"

namespace kalibri::runtime {

/// The threads of a run, a scratch buffer for each of them, and how they compute.
class Workers {
 public:
  explicit Workers(ThreadPool& pool, const Arithmetic& arithmetic = {})
      : pool_(pool), arithmetic_(arithmetic), scratch_(static_cast<std::size_t>(pool.n_threads())) {}

  [[nodiscard]] const Arithmetic& arithmetic() const { return arithmetic_; }

  /// What an operation put out, x [n]: rounded where this arithmetic rounds.
  void round(float* x, std::int64_t n) const {
    if (arithmetic_.rounds()) kernels::round_to_bf16(x, n);
  }
  /// The same for rows x [n_rows, width], on all threads.
  void round_rows(float* x, std::int64_t n_rows, std::int64_t width);

  /// Whom to tell what the run is at; null: nobody.
  void measure(PhaseClock* clock) { clock_ = clock; }
  void enter(Phase phase) const {
    if (clock_ != nullptr) clock_->enter(phase);
  }
  void count_weights(const kernels::MatrixView& w) const {
    if (clock_ != nullptr) clock_->count_weights(kernels::all_bytes(w));
  }

  /// task(i, worker) for i in [0, n).
  void each(std::int64_t n, const std::function<void(std::int64_t, int)>& task) { pool_.parallel_for(n, task); }
  /// task(i) for i in [0, n), for cheap tasks: handed out in runs of `grain`.
  void rows(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t)>& task);

  /// At least n floats that only `worker` uses; contents are lost at the next call for that worker.
  float* scratch(int worker, std::size_t n) { return at_least(scratch_[static_cast<std::size_t>(worker)], n); }
  /// At least n floats that all workers share.
  float* shared_scratch(std::size_t n) { return at_least(shared_scratch_, n); }
  [[nodiscard]] int n_threads() const { return pool_.n_threads(); }

 private:
  static float* at_least(AlignedFloats& buffer, std::size_t n) {
    if (buffer.size() < n) {
      buffer = {};  // first, so that memory never holds both
      buffer = AlignedFloats(n);
    }
    return buffer.data();
  }

  ThreadPool& pool_;
  Arithmetic arithmetic_;
  PhaseClock* clock_ = nullptr;
  std::vector<AlignedFloats> scratch_;
  AlignedFloats shared_scratch_;
};

/// Floats that a product takes while it is computed.
struct ProductRoom {
  std::size_t packed = 0;   // activations: of all threads together in `linear`
  std::size_t scratch = 0;  // of each thread
};
ProductRoom product_room(const Arithmetic& arithmetic, const kernels::MatrixView& w, std::int64_t n_tokens);

enum class Output : std::uint8_t {
  rounded,  // where the arithmetic rounds
  exact,    // as accumulated, in f32
};

/// y [n_tokens, w.n_rows] = x [n_tokens, w.n_cols] * W^T, rows without padding; y must not overlap x. The arithmetic
/// says what becomes of x in front of FP8 and affine weights.
void linear(Workers& workers, const kernels::MatrixView& w, const float* x, std::int64_t n_tokens, float* y,
            Output output = Output::rounded);

/// The same on the calling worker alone.
void linear_here(Workers& workers, int worker, const kernels::MatrixView& w, const float* x, std::int64_t n_tokens,
                 float* y);

}  // namespace kalibri::runtime

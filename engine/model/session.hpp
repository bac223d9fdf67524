// A model that is run: its weights (shared, read-only) and one sequence's caches. Nothing outside this folder knows
// which family it is. The same tokens give the same bits however they are cut into calls, chunks and threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/runtime/choices.hpp"
#include "engine/runtime/expert_cache.hpp"
#include "engine/runtime/phase_clock.hpp"
#include "engine/runtime/precision.hpp"
#include "engine/runtime/taps.hpp"
#include "engine/runtime/weight_place.hpp"

namespace kalibri::model {

/// What a caller may know of a model without knowing its family.
struct ModelInfo {
  std::string model_type;
  std::int64_t n_layers = 0;
  std::int64_t hidden_size = 0;  // H
  std::int64_t n_streams = 1;    // R = n_streams * H
  std::int64_t vocab_size = 0;   // V
  std::int64_t n_experts = 0;
  std::int64_t top_k = 0;
  std::int64_t max_positions = 0;  // longest sequence
  std::int64_t window = 0;         // sliding window (its own key counted) or selection budget
  std::int64_t chooses_from = 0;   // from so many tokens on, attention leaves blocks out by their scores; 0: never
  std::int64_t n_position_axes = 1;
  [[nodiscard]] std::int64_t residual_size() const { return n_streams * hidden_size; }
};

class Model {
 public:
  /// Finds and checks every tensor; copies and expands nothing but what `precision` asks for.
  /// The checkpoint must outlive the model. Throws Error(config | tensor | usage).
  /// With a cache of experts the routed ones are read from disk when they are wanted, and `place` says where the other
  /// weights lie; the same bits. One model at a time has a checkpoint's weights in memory, and nobody else reads the
  /// checkpoint while it is loaded and when it ends.
  Model(const checkpoint::Checkpoint& checkpoint, const runtime::Precision& precision,
        const runtime::ExpertCacheOptions& cache = {}, const runtime::WeightPlaceOptions& place = {});
  ~Model();
  Model(Model&&) noexcept;

  [[nodiscard]] const ModelInfo& info() const;
  [[nodiscard]] const runtime::Precision& precision() const;

  /// For runs that go layer by layer: this layer will not be asked for again soon, its expansions and experts may go.
  void leave_layer(std::int64_t layer) const;

  [[nodiscard]] const runtime::WeightPlaceInfo& weight_place() const;
  /// What the cache of experts that was asked for came to; nothing without one.
  [[nodiscard]] std::optional<runtime::ExpertCacheInfo> expert_cache() const;
  /// All sessions' together.
  [[nodiscard]] runtime::ExpertStatistics expert_statistics() const;

  struct Impl;
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct SessionOptions {
  std::int64_t max_tokens = 0;  // capacity of the growing caches; at most ModelInfo::max_positions
  std::int64_t chunk = 512;     // tokens that go through a layer at a time
};

class Session {
 public:
  /// Model and pool must outlive the session. Throws Error(input) when max_tokens is not in [1, max_positions].
  Session(const Model& model, ThreadPool& pool, const SessionOptions& options);
  ~Session();
  Session(Session&&) noexcept;

  /// Runs `ids` through the whole model from the current position on, chunk by chunk. logits, when not empty, receives
  /// the last logits.size() / V positions' rows. Throws Error(input) for an id outside [0, V), an empty call, or more
  /// tokens than max_tokens in all; the state is then unchanged.
  void forward(std::span<const std::int32_t> ids, std::span<float> logits, runtime::TapSink* taps = nullptr);

  /// Tokens whose state is held: the position of the next one.
  [[nodiscard]] std::int64_t position() const;
  /// Tokens that have gone through every layer since construction (prefill and decode each count once a token).
  [[nodiscard]] std::int64_t token_forwards() const;

  // The parts of forward, for runs that go layer by layer (a dump): the same bits.

  /// residual [n, R] <- the embedding of ids (repeated for each stream).
  void embed(std::span<const std::int32_t> ids, float* residual) const;
  /// One layer over n tokens, in place, from that layer's own position on; chunked as options.chunk says.
  void run_layer(std::int64_t layer, std::span<const std::int32_t> ids, float* residual, runtime::TapSink* taps);
  /// final_norm [n, H] and, when not null, logits [n, V] of n residual rows.
  void head(const float* residual, std::int64_t n, float* final_norm, float* logits);

  /// Puts another run's choices of experts and blocks in place of the model's own; null: no more. Must outlive its use.
  void force(const runtime::ForcedChoices* choices);

  /// Tells `clock` where the time of the calls that follow goes; null: no more. Must outlive its use.
  void measure(runtime::PhaseClock* clock);

  /// All that the tokens so far have left behind. A session that is restored goes on with the same bits as one that had
  /// stopped there; max_tokens must be the same.
  class Snapshot;
  [[nodiscard]] std::shared_ptr<const Snapshot> snapshot() const;
  void restore(const Snapshot& snapshot);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace kalibri::model

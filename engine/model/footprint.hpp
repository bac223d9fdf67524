// How much memory a checkpoint takes when it runs, and how many bytes and operations a token costs: from headers and
// config.json alone, no weight is read. A test holds it against what a run allocates.
#pragma once

#include <cstdint>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/runtime/precision.hpp"

namespace kalibri::model {

struct FootprintOptions {
  runtime::Precision precision;
  std::int64_t context = 0;  // tokens of the longest sequence, 1 to max_positions; 0: as many as the model has, up to
                             // kDefaultContext
  std::int64_t chunk = 512;  // tokens that go through a layer at a time
  int n_threads = 1;

  static constexpr std::int64_t kDefaultContext = 8192;
};

struct Footprint {
  std::string model_type;
  std::int64_t n_layers = 0;
  std::int64_t n_experts = 0;
  std::int64_t top_k = 0;
  std::int64_t max_positions = 0;
  std::int64_t context = 0;  // what the session is planned for

  // Weights that every token passes, in bytes.
  std::int64_t mapped_bytes = 0;     // matrices, scales included, that are multiplied with where the files are mapped
  std::int64_t made_bytes = 0;       // matrices in another form, in memory of their own
  std::int64_t head_bytes = 0;       // the head's share of these two: of a prompt its last token alone passes it
  std::int64_t embedding_bytes = 0;  // mapped; a token reads one row
  std::int64_t vector_bytes = 0;     // norms, biases and convolutions, widened to f32
  std::int64_t index_bytes = 0;      // the names and places of all tensors
  std::int64_t table_bytes = 0;      // n-gram tables: a token reads some rows from the file, nothing stays in memory

  // Routed experts.
  std::int64_t expert_bytes = 0;         // the largest one as it is multiplied with
  std::int64_t stored_expert_bytes = 0;  // the largest one in the files
  std::int64_t all_expert_bytes = 0;     // all of them in the files
  std::int64_t slot_bytes = 0;           // of a cache
  std::int64_t scale_bytes = 0;          // FP8 scales of all experts, which stay in memory beside a cache
  bool makes_experts = false;            // the precision makes another form of them, which no cache holds

  // A session.
  std::int64_t state_bytes = 0;      // of `context` tokens
  std::int64_t token_bytes = 0;      // of it, what each token adds
  std::int64_t touched_bytes = 0;    // of it, what the last token reads and writes
  std::int64_t workspace_bytes = 0;  // buffers of a chunk, and a generator's logits

  // Weights that a token is multiplied with: two operations each.
  std::int64_t n_always_weights = 0;  // but for the head
  std::int64_t n_head_weights = 0;
  std::int64_t n_expert_weights = 0;  // of one expert

  /// Weights that are read for each token, routed experts aside.
  [[nodiscard]] std::int64_t always_bytes() const { return mapped_bytes + made_bytes; }
  /// Routed experts that are read for each token.
  [[nodiscard]] std::int64_t routed_bytes() const { return n_layers * top_k * expert_bytes; }
  /// What stays in memory of the weights without any routed expert.
  [[nodiscard]] std::int64_t resident_bytes() const {
    return mapped_bytes + made_bytes + embedding_bytes + vector_bytes + index_bytes + scale_bytes;
  }
  /// State that does not grow with the tokens: windows, DeltaNet's memory.
  [[nodiscard]] std::int64_t fixed_state_bytes() const { return state_bytes - token_bytes * context; }
};

/// Throws Error(config | tensor) when the checkpoint is not whole, Error(usage) for a context or a chunk that cannot
/// be.
Footprint footprint(const checkpoint::Checkpoint& checkpoint, const FootprintOptions& options);

}  // namespace kalibri::model

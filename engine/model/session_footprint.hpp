// The memory of a session, from a family's configuration: state and buffers, each named as where it is allocated.
#pragma once

#include <cstdint>

#include "engine/checkpoint/kolibri1_config.hpp"
#include "engine/checkpoint/qwen4_exp_config.hpp"

namespace kalibri::model {

struct SessionSizes {
  std::int64_t context = 0;  // tokens of the longest sequence
  std::int64_t chunk = 0;    // tokens that go through a layer at a time, at most `context`
  int n_threads = 1;
};

struct SessionFootprint {
  std::int64_t state_bytes = 0;
  std::int64_t token_bytes = 0;    // of the state, what each token adds
  std::int64_t touched_bytes = 0;  // of the state, what the last token reads and writes
  std::int64_t buffer_bytes = 0;   // products' packed activations and scratch aside
};

SessionFootprint session_footprint(const checkpoint::Kolibri1Config& config, const SessionSizes& sizes);
SessionFootprint session_footprint(const checkpoint::Qwen4ExpConfig& config, const SessionSizes& sizes);

}  // namespace kalibri::model

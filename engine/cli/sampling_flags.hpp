// How a command line asks to sample: what it states, over what the checkpoint recommends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/sampler.hpp"

namespace kalibri::cli {

struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;  // -1 means off too
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::vector<std::string> logit_bias;  // ID=VALUE
  std::optional<std::int64_t> seed;     // absent: a random one
};

/// Throws Error(usage) for a bias that is no ID=VALUE and for what validate refuses.
runtime::SamplingOptions sampling_options(const SamplingFlags& flags, runtime::SamplingOptions recommended,
                                          std::int64_t vocab_size);

}  // namespace kalibri::cli

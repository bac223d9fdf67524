// How a checkpoint recommends to sample. Where its texts end is for the tokenizer's side (text::stop_ids).
#pragma once

#include <filesystem>

#include "engine/runtime/sampler.hpp"

namespace kalibri::runtime {

/// temperature, top_k, top_p, min_p and repetition_penalty of generation_config.json in a checkpoint's directory;
/// do_sample false: temperature 0. A member that is absent or null, like a file that is not there, leaves the option as
/// SamplingOptions has it; other members are not looked at. Throws Error(format | config) naming file and member: no
/// JSON object, a wrong type, a value outside the option's range.
SamplingOptions recommended_sampling(const std::filesystem::path& directory);

}  // namespace kalibri::runtime

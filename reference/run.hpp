// The main job: prompts through a model, layer by layer, into a dump. No family is known here.
#pragma once

#include <string>

#include "reference/options.hpp"

namespace kalibri::reference {

/// Writes options.out, complete or not at all. Throws Error and dump::Error for bad input.
void run(const Options& options);

/// "LibTorch 1.13.0, AVX512", the build and the instruction set that compute.
std::string arithmetic_text();

}  // namespace kalibri::reference

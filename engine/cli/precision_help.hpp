// What --precision's help says, for every command that has it.
#pragma once

namespace kalibri::cli {

inline constexpr const char* kPrecisionHelp =
    "native (weights as stored), exact (expanded to f32), bf16 (every output rounded), production (as FP8 is served), "
    "mixed-4-8, or KEY=VALUE,...: dense, experts, embed, head = native, f32, bf16, affine:BITS:GROUP[:gpu]; compute = "
    "f32, bf16, bf16-served; residual = f32, bf16, bf16-fused; activations = f32, fp8-dynamic, int16, int8; kv = f32, "
    "bf16; router = f32";

}  // namespace kalibri::cli

// What --precision's help says, for every command that has it.
#pragma once

namespace kalibri::cli {

inline constexpr const char* kPrecisionHelp =
    "native (weights as stored), exact (expanded to f32), mixed-4-8, or dense=FORM,experts=FORM,embed=FORM,head=FORM, "
    "each native, f32, bf16 or affine:BITS:GROUP[:gpu]";

}  // namespace kalibri::cli

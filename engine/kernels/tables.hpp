// The tables that may be compiled in, each the one symbol of its file.
#pragma once

#include "engine/kernels/kernel_table.hpp"

namespace kalibri::kernels {

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kNeonKernels;

}  // namespace kalibri::kernels

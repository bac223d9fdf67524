// Which table of kernels runs: the only state of this folder. kernel_table.hpp says what a table holds.
#pragma once

#include <string_view>
#include <vector>

#include "engine/kernels/kernel_table.hpp"

namespace kalibri::kernels {

/// The best table this CPU can run, chosen once; the environment variable KALIBRI_ISA (scalar, avx2, ...) forces one.
/// Throws std::runtime_error when the forced one is unknown or cannot run here.
const KernelTable& kernels();

/// Every table compiled into this program that this CPU can run, the scalar one first, the best one last.
std::vector<const KernelTable*> runnable_kernels();

/// The table called `isa`, or null when it is not compiled in or the CPU cannot run it.
const KernelTable* find_kernels(std::string_view isa);

}  // namespace kalibri::kernels

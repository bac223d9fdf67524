// The kernels with NEON.
#include "engine/kernels/isa_neon.hpp"
#include "engine/kernels/kernels-inl.hpp"
#include "engine/kernels/tables.hpp"

namespace kalibri::kernels {

constexpr KernelTable kNeonKernels = vector_kernels("neon");

}  // namespace kalibri::kernels

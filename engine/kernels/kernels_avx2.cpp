// The kernels with AVX2.
#include "engine/kernels/isa_avx2.hpp"
#include "engine/kernels/kernels-inl.hpp"
#include "engine/kernels/tables.hpp"

namespace kalibri::kernels {

constexpr KernelTable kAvx2Kernels = vector_kernels("avx2");

}  // namespace kalibri::kernels

// The kernels with AVX-512.
#include "engine/kernels/isa_avx512.hpp"
#include "engine/kernels/kernels-inl.hpp"
#include "engine/kernels/tables.hpp"

namespace kalibri::kernels {

constexpr KernelTable kAvx512Kernels = vector_kernels("avx512");

}  // namespace kalibri::kernels

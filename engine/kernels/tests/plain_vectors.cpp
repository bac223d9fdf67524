// The kernels on isa_scalar.hpp: shows that the shared code is right whatever registers it gets, on any machine.
#define KALIBRI_PLAIN_VECTORS
#include "engine/kernels/kernels-inl.hpp"
#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels::test {

const KernelTable& plain_vectors() {
  static constexpr KernelTable kTable = vector_kernels("plain");
  return kTable;
}

}  // namespace kalibri::kernels::test

// The choice of a table.
#include <cstdlib>

#include "engine/kernels/kernels.hpp"
#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

TEST_CASE("the scalar table is always there and first") {
  REQUIRE(!runnable_kernels().empty());
  CHECK(std::string(runnable_kernels().front()->isa) == "scalar");
  CHECK(find_kernels("scalar") == runnable_kernels().front());
}

TEST_CASE("an unknown instruction set is not found") { CHECK(find_kernels("mmx") == nullptr); }

}  // namespace
}  // namespace kalibri::kernels

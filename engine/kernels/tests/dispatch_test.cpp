// The choice of a table, seen from outside: by environment, and on a processor without vectors.
#include <filesystem>

#include "engine/kernels/tests/support.hpp"
#include "fixtures/run_program.hpp"

namespace kalibri::kernels {
namespace {

fixtures::RunResult print_isa(const std::string& forced) {
  const fixtures::RunOptions options = {.environment = {{"KALIBRI_ISA", forced}}};
#if defined(KALIBRI_EMULATOR)  // this program runs in one, too
  return fixtures::run_program(KALIBRI_EMULATOR, {KALIBRI_PRINT_ISA}, options);
#else
  return fixtures::run_program(KALIBRI_PRINT_ISA, {}, options);
#endif
}

TEST_CASE("the scalar table is always there and first") {
  REQUIRE(!runnable_kernels().empty());
  CHECK(std::string(runnable_kernels().front()->isa) == "scalar");
  CHECK(find_kernels("scalar") == runnable_kernels().front());
  CHECK(find_kernels("mmx") == nullptr);
}

TEST_CASE("KALIBRI_ISA forces every table that runs here, and the forced one's functions run") {
  for (const KernelTable* table : runnable_kernels()) {
    const fixtures::RunResult result = print_isa(table->isa);
    CHECK(result.exit_status == 0);
    CHECK(result.out == std::string(table->isa) + " own\n");
  }
}

TEST_CASE("an unknown KALIBRI_ISA is refused with the tables that run here") {
  const fixtures::RunResult result = print_isa("mmx");
  CHECK(result.exit_status == 2);
  CHECK_THAT(result.err, Catch::Matchers::ContainsSubstring("'mmx'"));
  for (const KernelTable* table : runnable_kernels())
    CHECK_THAT(result.err, Catch::Matchers::ContainsSubstring(table->isa));
}

#ifdef __x86_64__  // no other has processors without vectors
TEST_CASE("a processor without AVX2 falls back to scalar and refuses a forced avx2") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  KALIBRI_SKIP("the emulator does not run programs with sanitizers");
#else
  const std::filesystem::path emulator = "/usr/bin/qemu-x86_64-static";
  if (!std::filesystem::exists(emulator))
    KALIBRI_SKIP("qemu-x86_64-static (Debian's qemu-user-static) is not installed");
  const std::vector<std::string> arguments = {"-cpu", "Nehalem", KALIBRI_PRINT_ISA};
  const fixtures::RunResult chosen = fixtures::run_program(emulator, arguments);
  CHECK(chosen.exit_status == 0);
  CHECK(chosen.out == "scalar own\n");
  const fixtures::RunResult forced =
      fixtures::run_program(emulator, arguments, {.environment = {{"KALIBRI_ISA", "avx2"}}});
  CHECK(forced.exit_status == 2);
  CHECK_THAT(forced.err, Catch::Matchers::ContainsSubstring("'avx2' is unknown or cannot run here"));
#endif
}
#endif

}  // namespace
}  // namespace kalibri::kernels

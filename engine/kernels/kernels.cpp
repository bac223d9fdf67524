// Chooses the table: asks the CPU, and the environment for a forced choice.
#include "engine/kernels/kernels.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "engine/kernels/tables.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kalibri::kernels {
namespace {

#if defined(__x86_64__)
/// __builtin_cpu_supports of clang 14 does not know it.
bool has_f16c() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

std::vector<const KernelTable*> runnable_kernels() {
  std::vector<const KernelTable*> tables = {&kScalarKernels};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
    tables.push_back(&kAvx2Kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      tables.push_back(&kAvx512Kernels);
    }
  }
#elif defined(__aarch64__)
  tables.push_back(&kNeonKernels);
#endif
  return tables;
}

const KernelTable* find_kernels(std::string_view isa) {
  for (const KernelTable* table : runnable_kernels()) {
    if (table->isa == isa) return table;
  }
  return nullptr;
}

namespace {

const KernelTable& choose() {
  const char* forced = std::getenv("KALIBRI_ISA");
  if (forced == nullptr) return *runnable_kernels().back();
  if (const KernelTable* table = find_kernels(forced)) return *table;
  std::string runnable;
  for (const KernelTable* table : runnable_kernels())
    runnable += std::string(runnable.empty() ? "" : ", ") + table->isa;
  throw std::runtime_error("KALIBRI_ISA: '" + std::string(forced) +
                           "' is unknown or cannot run here; this machine runs: " + runnable);
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace kalibri::kernels

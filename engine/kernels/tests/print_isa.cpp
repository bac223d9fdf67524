// Prints the table that kernels() chose, and whether its functions are that table's own: no other table has any of
// them.
#include <cstdio>
#include <exception>

#include "engine/kernels/kernels.hpp"

int main() {
  using namespace kalibri::kernels;
  try {
    const KernelTable& chosen = kernels();
    bool own = true;
    for (const KernelTable* other : runnable_kernels()) {
      if (other == &chosen) continue;
      own = own && other->matmul != chosen.matmul && other->dot != chosen.dot && other->attention != chosen.attention;
    }
    std::printf("%s %s\n", chosen.isa, own ? "own" : "shared");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}

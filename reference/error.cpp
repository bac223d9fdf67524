#include "reference/error.hpp"

#include <fmt/format.h>

namespace kalibri::reference {

void check(bool holds, const char* what, const char* file, int line) {
  if (!holds) throw InternalError(fmt::format("{}:{}: {}", file, line, what));
}

}  // namespace kalibri::reference

// The reference's own errors. A program built from it exits 2 for Error and 4 for InternalError.
#pragma once

#include <stdexcept>

namespace kalibri::reference {

/// The input is at fault. Text reads: where: what: found, expected and why; what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// We are at fault; no input may lead here.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws InternalError with the caller's place unless `holds`. (clang 14 has no std::source_location.)
void check(bool holds, const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace kalibri::reference

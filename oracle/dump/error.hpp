// The dump library's own error: a file that cannot be written, or is no valid dump. It depends on nothing of the
// project.
#pragma once

#include <stdexcept>
#include <string>

namespace kalibri::dump {

/// Text reads: where: what: found, expected and why; what to do. Programs exit with status 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kalibri::dump

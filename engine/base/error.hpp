// The one way in which the engine says that its input is at fault: a file, a flag, a request or a dump.
// Caught in `main` (exit status 2) and at the edge of a request. It knows nothing of what was being read.
#pragma once

#include <stdexcept>
#include <string>

namespace kalibri {

enum class ErrorCode {
  usage,   // a flag or an argument that cannot be used
  file,    // a file that is missing, unreadable, unwritable, truncated
  format,  // a file whose contents contradict themselves
  config,  // config.json lacks a key or asks for something that is refused
  tensor,  // a tensor is missing, of the wrong shape or dtype, or holds a NaN code
  input,   // token ids, prompts and other data that do not fit the model
};

/// Text reads: where: what: found, expected and why; what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace kalibri

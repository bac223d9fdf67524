// Checks of our own reasoning. They are always on (KALIBRI_CHECK) or on in debug builds (KALIBRI_DCHECK), and no input
// may reach them: what a file, flag or request can get wrong is an Error (error.hpp), found where the value enters.
#pragma once

#include <stdexcept>
#include <string>

namespace kalibri {

/// A fault of this program, never of its input. The command line reports it with exit status 4.
class InternalError : public std::logic_error {
 public:
  InternalError(const char* file, int line, const std::string& text)
      : std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + text) {}
};

}  // namespace kalibri

#define KALIBRI_CHECK(condition, text)                                        \
  do {                                                                        \
    if (!(condition)) throw kalibri::InternalError(__FILE__, __LINE__, text); \
  } while (false)

#ifdef NDEBUG
#define KALIBRI_DCHECK(condition, text) \
  do {                                  \
  } while (false)
#else
#define KALIBRI_DCHECK(condition, text) KALIBRI_CHECK(condition, text)
#endif

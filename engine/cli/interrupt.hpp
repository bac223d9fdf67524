// Ctrl-C (SIGINT) as something that a command looks at, instead of the program's end.
#pragma once

#include <atomic>

namespace kalibri::cli {

/// Exit status of a command that Ctrl-C ended, as a shell says of a program that SIGINT ended.
inline constexpr int kInterrupted = 130;

/// While one lives, SIGINT is noted. A second one before the first was looked at (`clear`) ends the program as usual.
/// Where SIGINT was ignored it still is. At most one at a time.
class Interrupt {
 public:
  /// Throws std::system_error.
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] const std::atomic<bool>& flag() const;
  /// Can be read from while the flag is set (for poll).
  [[nodiscard]] int descriptor() const;
  void clear();
};

}  // namespace kalibri::cli

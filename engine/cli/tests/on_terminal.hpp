// A program on a terminal of its own (a pseudo-terminal), as a person would have it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace kalibri::cli::test {

class OnTerminal {
 public:
  /// Starts `program`. Throws std::system_error.
  OnTerminal(const std::filesystem::path& program, const std::vector<std::string>& arguments);
  ~OnTerminal();
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  /// What a person types; "\x03" is Ctrl-C, "\x04" Ctrl-D.
  void type(const std::string& keys) const;
  /// Waits until `text` has been shown after what was waited for before; false after a minute.
  bool shows(const std::string& text);
  /// Waits for the end: the exit status, or minus the signal.
  int exit_status();
  /// All that has been shown: both streams, and the echo of what was typed.
  [[nodiscard]] const std::string& shown() const { return shown_; }

 private:
  bool read_more();

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string shown_;
  std::size_t n_seen_ = 0;
};

}  // namespace kalibri::cli::test

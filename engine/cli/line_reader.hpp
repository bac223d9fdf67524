// Lines that a person or a program types, and Ctrl-C between them. Reads the descriptor itself: std::getline goes on
// waiting after a signal. A terminal's own line editing is enough here; readline would be a library for one loop.
#pragma once

#include <cstddef>
#include <string>

namespace kalibri::cli {

class LineReader {
 public:
  enum class Event { line, end, interrupted };
  static constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

  /// Reads `input` until `interrupt` (Interrupt::descriptor) has something to read.
  LineReader(int input, int interrupt) : input_(input), interrupt_(interrupt) {}

  /// Waits for the next line, which comes without its end (LF or CRLF); the last line may lack one. Throws
  /// std::system_error; Error(input) for a line longer than kMaxBytes.
  Event next(std::string& line);

 private:
  bool take_line(std::string& line);

  int input_;
  int interrupt_;
  bool is_over_ = false;
  std::string buffer_;
};

}  // namespace kalibri::cli

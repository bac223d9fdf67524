// How far a command is that reads gigabytes: one line on a terminal, written over and over.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>

namespace kalibri::cli {

/// Of 10^9 bytes.
double gigabytes(std::int64_t n_bytes);

class ProgressLine {
 public:
  /// Null: nothing is shown.
  explicit ProgressLine(std::ostream* out);
  /// Twice a second at most, and not in the first half.
  void show(std::int64_t n_done_bytes, std::int64_t n_all_bytes);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::ostream* out_;
  Clock::time_point started_;
  Clock::time_point shown_;
  bool is_shown_ = false;
};

}  // namespace kalibri::cli

#include "engine/cli/progress_line.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <ostream>
#include <string>

namespace kalibri::cli {

namespace {

/// "1:04:09" or "4:09".
std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

double gigabytes(std::int64_t n_bytes) { return static_cast<double>(n_bytes) * 1e-9; }

ProgressLine::ProgressLine(std::ostream* out) : out_(out), started_(Clock::now()), shown_(started_) {}

void ProgressLine::show(std::int64_t n_done_bytes, std::int64_t n_all_bytes) {
  if (out_ == nullptr) return;
  const auto now = Clock::now();
  if (now - shown_ < std::chrono::milliseconds(500)) return;
  shown_ = now;
  is_shown_ = true;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const double rate = static_cast<double>(n_done_bytes) / seconds;
  fmt::print(*out_, "\r{:.2f} of {:.2f} GB, {:.0f} MB/s, {} left   ", gigabytes(n_done_bytes), gigabytes(n_all_bytes),
             rate * 1e-6, clock_text(static_cast<double>(n_all_bytes - n_done_bytes) / rate));
  out_->flush();
}

void ProgressLine::clear() {
  if (is_shown_) *out_ << "\r\33[K" << std::flush;
  is_shown_ = false;
}

}  // namespace kalibri::cli

#include "engine/cli/jsonl_filter.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <istream>
#include <optional>
#include <ostream>
#include <string_view>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

/// The next line without its end; nothing at the end of the input.
std::optional<std::string> read_line(std::istream& in) {
  std::string line;
  std::streambuf& buffer = *in.rdbuf();
  for (int c = buffer.sbumpc(); c != std::char_traits<char>::eof(); c = buffer.sbumpc()) {
    if (c == '\n') return line;
    if (line.size() == kMaxLineBytes) throw Error(ErrorCode::input, "longer than 64 MiB");
    line.push_back(static_cast<char>(c));
  }
  if (line.empty()) return std::nullopt;
  return line;
}

/// JSON without line breaks: LF and CR can only stand between values; in strings, what some programs take for one as
/// well (U+0085, U+2028, U+2029) is escaped.
std::string in_one_line(std::string_view json) {
  std::string line;
  line.reserve(json.size());
  while (!json.empty()) {
    std::size_t n = 1;
    if (json.front() == '\n' || json.front() == '\r') {
      line += ' ';
    } else if (json.starts_with("\u0085")) {
      line += "\\u0085";
      n = 2;
    } else if (json.starts_with("\u2028") || json.starts_with("\u2029")) {
      line += json.starts_with("\u2028") ? "\\u2028" : "\\u2029";
      n = 3;
    } else {
      line += json.front();
    }
    json.remove_prefix(n);
  }
  return line;
}

}  // namespace

void answer_lines(std::istream& in, std::ostream& out,
                  const std::function<std::string(const std::string& line)>& answer) {
  std::int64_t number = 1;
  try {
    for (; const auto line = read_line(in); ++number) {
      out << in_one_line(answer(*line)) << '\n' << std::flush;
      if (!out) return;
    }
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("standard input, line {}: {}", number, error.what()));
  }
}

}  // namespace kalibri::cli

#include "engine/cli/line_reader.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "engine/base/error.hpp"

namespace kalibri::cli {

LineReader::Event LineReader::next(std::string& line) {
  while (!take_line(line)) {
    if (is_over_) return Event::end;
    std::array<pollfd, 2> sources = {pollfd{interrupt_, POLLIN, 0}, pollfd{input_, POLLIN, 0}};
    if (::poll(sources.data(), sources.size(), -1) < 0) {
      if (errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    if (sources[0].revents != 0) return Event::interrupted;
    std::array<char, 65536> bytes{};
    const ssize_t n = ::read(input_, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "standard input");
    is_over_ = n == 0;
    if (n > 0) buffer_.append(bytes.data(), static_cast<std::size_t>(n));
    if (buffer_.size() > kMaxBytes) throw Error(ErrorCode::input, "standard input: a line has more than 16 MiB");
  }
  return Event::line;
}

bool LineReader::take_line(std::string& line) {
  const std::size_t end = buffer_.find('\n');
  if (end == std::string::npos && !(is_over_ && !buffer_.empty())) return false;
  line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

}  // namespace kalibri::cli

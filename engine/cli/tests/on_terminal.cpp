#include "engine/cli/tests/on_terminal.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace kalibri::cli::test {

namespace {

constexpr int kPatience_ms = 60000;

void expect(bool is_good, const char* what) {
  if (!is_good) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

OnTerminal::OnTerminal(const std::filesystem::path& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  expect(terminal_ >= 0 && ::grantpt(terminal_) == 0 && ::unlockpt(terminal_) == 0, "posix_openpt");
  const std::string name = ::ptsname(terminal_);
  child_ = ::fork();
  expect(child_ >= 0, "fork");
  if (child_ == 0) {
    ::signal(SIGINT, SIG_DFL);
    ::setsid();
    const int end = ::open(name.c_str(), O_RDWR);
    ::ioctl(end, TIOCSCTTY, 0);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(end, stream);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
}

OnTerminal::~OnTerminal() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  ::close(terminal_);
}

void OnTerminal::type(const std::string& keys) const {
  expect(::write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()), "write");
}

bool OnTerminal::read_more() {
  pollfd source = {terminal_, POLLIN, 0};
  if (::poll(&source, 1, kPatience_ms) <= 0) return false;
  std::array<char, 4096> bytes{};
  const ssize_t n = ::read(terminal_, bytes.data(), bytes.size());  // EIO: the program has closed its end
  if (n > 0) shown_.append(bytes.data(), static_cast<std::size_t>(n));
  return n > 0;
}

bool OnTerminal::shows(const std::string& text) {
  while (true) {
    if (const std::size_t found = shown_.find(text, n_seen_); found != std::string::npos) {
      n_seen_ = found + text.size();
      return true;
    }
    if (!read_more()) return false;
  }
}

int OnTerminal::exit_status() {
  while (read_more()) {
  }
  int status = 0;
  ::waitpid(child_, &status, 0);
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace kalibri::cli::test

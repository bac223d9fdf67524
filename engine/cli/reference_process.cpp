#include "engine/cli/reference_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

constexpr std::size_t kKeptBytes = 2000;  // of the child's standard error

/// Exit status of a child that could not become the program.
constexpr int kNotStarted = 127;

[[noreturn]] void become(const std::filesystem::path& program, std::vector<char*>& arguments, int error_pipe) {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing >= 0) {
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(nothing, STDOUT_FILENO);
  }
  ::dup2(error_pipe, STDERR_FILENO);
  ::execv(program.c_str(), arguments.data());
  const char* reason = std::strerror(errno);
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, reason, std::strlen(reason));
  ::_exit(kNotStarted);
}

/// Everything that comes out of `pipe`; of much, the end.
std::string read_end(int pipe) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t n = ::read(pipe, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() > kKeptBytes) text.erase(0, text.size() - kKeptBytes);
  }
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

}  // namespace

void run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> texts = {program.string()};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);

  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  const pid_t child = ::fork();
  if (child == 0) become(program, pointers, ends[1]);
  ::close(ends[1]);
  const std::string error_text = child > 0 ? read_end(ends[0]) : "";
  ::close(ends[0]);
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");

  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotStarted) {
    throw Error(ErrorCode::file,
                fmt::format("{}: cannot be started: {}; build it, or name another with --reference-program, or its "
                            "dumps with --reference and --reference64",
                            program.string(), error_text));
  }
  const std::string how = WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                              : fmt::format("failed with exit status {}", WEXITSTATUS(status));
  throw Error(ErrorCode::file, fmt::format("{} {}; its last words:\n{}", program.string(), how, error_text));
}

std::filesystem::path program_beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

std::filesystem::path reference_program(const std::string& named) {
  return named.empty() ? program_beside("kalibri-reference") : std::filesystem::path(named);
}

void run_reference(const ReferenceRun& run, const std::vector<std::string>& more, const std::filesystem::path& out) {
  std::vector<std::string> arguments = {"run", run.checkpoint, "--tokens", run.tokens.string(), "-o", out.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  if (run.n_threads > 0) arguments.insert(arguments.end(), {"--threads", std::to_string(run.n_threads)});
  run_program(run.program, arguments);
  if (!std::filesystem::exists(out)) {
    throw Error(ErrorCode::file, fmt::format("{}: ended without an error, but wrote no {}; is it kalibri-reference?",
                                             run.program.string(), out.string()));
  }
}

}  // namespace kalibri::cli

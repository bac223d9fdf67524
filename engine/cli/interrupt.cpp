#include "engine/cli/interrupt.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "engine/base/check.hpp"

namespace kalibri::cli {

namespace {

// What a signal handler may touch lies outside of any object.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
int pipe_ends[2] = {-1, -1};
struct sigaction former {};

void note_interrupt(int) {
  const int saved_errno = errno;
  if (interrupted.exchange(true)) {
    ::signal(SIGINT, SIG_DFL);
    ::raise(SIGINT);
  }
  const char byte = 0;
  if (::write(pipe_ends[1], &byte, 1) < 0) {
    // full: then it can be read from all the same
  }
  errno = saved_errno;
}

}  // namespace

Interrupt::Interrupt() {
  KALIBRI_CHECK(pipe_ends[0] < 0, "two of Interrupt at a time");
  if (::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  interrupted = false;
  ::sigaction(SIGINT, nullptr, &former);
  if (former.sa_handler == SIG_IGN) return;
  struct sigaction noted {};
  noted.sa_handler = note_interrupt;
  ::sigaction(SIGINT, &noted, nullptr);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGINT, &former, nullptr);
  for (int& end : pipe_ends) {
    ::close(end);
    end = -1;
  }
}

const std::atomic<bool>& Interrupt::flag() const { return interrupted; }

int Interrupt::descriptor() const { return pipe_ends[0]; }

void Interrupt::clear() {
  char bytes[64];
  while (::read(pipe_ends[0], bytes, sizeof bytes) > 0) {
  }
  interrupted = false;
}

}  // namespace kalibri::cli

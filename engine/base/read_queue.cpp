#include "engine/base/read_queue.hpp"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/uring_queue.hpp"

namespace kalibri {

namespace {

constexpr int kThreads = 4;  // they wait for the disk, not for a core

class ThreadQueue final : public ReadQueue {
 public:
  explicit ThreadQueue(Done done) : done_(std::move(done)) {
    try {
      for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {  // the system gives no more threads; those that run must end before they can be dropped
      stop();
      throw;
    }
  }

  ~ThreadQueue() override { stop(); }

  void start(std::span<const FilePart> parts) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), parts.begin(), parts.end());
    }
    ready_.notify_all();
  }

  [[nodiscard]] const char* name() const override { return "threads"; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ready_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const FilePart part = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      done_(part.tag, read_part(part));
      lock.lock();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Done done_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<FilePart> waiting_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

class BlockingQueue final : public ReadQueue {
 public:
  explicit BlockingQueue(Done done) : done_(std::move(done)) {}
  void start(std::span<const FilePart> parts) override {
    for (const FilePart& part : parts) done_(part.tag, read_part(part));
  }
  [[nodiscard]] const char* name() const override { return "blocking reads"; }

 private:
  Done done_;
};

}  // namespace

bool advance(FilePart& part, std::size_t n) {
  const std::size_t unit = part.is_direct ? kDirectBlock : 1;
  const std::size_t n_taken = n / unit * unit;
  part.offset += n_taken;
  part.to += n_taken;
  part.n_bytes -= n_taken;
  part.n_needed -= n_taken;
  return n_taken > 0;
}

int read_part(FilePart part) {
  while (true) {
    const ::ssize_t n = ::pread(part.descriptor, part.to, part.n_bytes, static_cast<::off_t>(part.offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (static_cast<std::size_t>(n) >= part.n_needed) return 0;
    if (!advance(part, static_cast<std::size_t>(n))) return ReadQueue::kEnded;
  }
}

std::unique_ptr<ReadQueue> make_read_queue(ReadEngine engine, ReadQueue::Done done) {
  if (engine == ReadEngine::blocking) return std::make_unique<BlockingQueue>(std::move(done));
  if (engine != ReadEngine::threads) {
    if (auto queue = make_uring_queue(done)) return queue;
    if (engine == ReadEngine::uring) throw Error(ErrorCode::usage, "io_uring: the kernel does not allow it here");
  }
  return std::make_unique<ThreadQueue>(std::move(done));
}

}  // namespace kalibri

#include "engine/base/uring_queue.hpp"

#include <liburing.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kalibri {

namespace {

constexpr unsigned kEntries = 256;

/// The kernel is asked for this much at once, or one read more: every disk is busy with it. Some virtual disks tell of
/// no read before they have done all that they were asked for; with more at once, who computes would wait for the last.
constexpr std::size_t kBusyBytes = std::size_t{12} << 20;

/// Whoever wants a read submits it, as far as the disk is not busy; one thread sees what has arrived, submits what has
/// waited, and asks again for what came in part.
class UringQueue final : public ReadQueue {
 public:
  UringQueue(const ::io_uring& ring, Done done) : ring_(ring), done_(std::move(done)), reaper_([this] { reap(); }) {}

  ~UringQueue() override {
    push(nullptr);
    reaper_.join();
    ::io_uring_queue_exit(&ring_);
  }

  void start(std::span<const FilePart> parts) override {
    n_open_.fetch_add(static_cast<std::int64_t>(parts.size()));
    submit_next(parts, nullptr);
  }

  [[nodiscard]] const char* name() const override { return "io_uring"; }

 private:
  /// What is still to be read of a part.
  struct Read {
    FilePart rest;
    std::size_t n_bytes;  // of all of it
  };

  /// Puts parts behind those that wait, counts a read that has ended, and asks for as much as is to be under way.
  void submit_next(std::span<const FilePart> parts, const Read* ended) {
    std::vector<Read*> refused;
    {
      const std::lock_guard lock(submit_mutex_);
      waiting_.insert(waiting_.end(), parts.begin(), parts.end());
      if (ended != nullptr) bytes_under_way_ -= ended->n_bytes, --n_under_way_;
      while (!waiting_.empty() && bytes_under_way_ < kBusyBytes && n_under_way_ < kEntries) {
        bytes_under_way_ += waiting_.front().n_bytes;
        ++n_under_way_;
        auto* read = new Read{waiting_.front(), waiting_.front().n_bytes};
        waiting_.pop_front();
        if (!prepare(read)) refused.push_back(read);
      }
      submit();
    }
    for (Read* read : refused) finish(read, read_part(read->rest));
  }

  /// Null: the reaper ends when nothing is under way.
  void push(Read* read) {
    {
      const std::lock_guard lock(submit_mutex_);
      if (prepare(read)) {
        submit();
        return;
      }
    }
    finish(read, read_part(read->rest));
  }

  /// False: the kernel takes no more.
  bool prepare(Read* read) {
    ::io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr && submit()) entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) return false;
    if (read == nullptr) {
      ::io_uring_prep_nop(entry);
    } else {
      const FilePart& part = read->rest;
      ::io_uring_prep_read(entry, part.descriptor, part.to, static_cast<unsigned>(part.n_bytes), part.offset);
      // Else the submitter itself would copy what the page cache has.
      if (!part.is_direct) entry->flags |= IOSQE_ASYNC;
    }
    ::io_uring_sqe_set_data(entry, read);
    return true;
  }

  /// Hands the kernel what was prepared, of which it may take a part at a time. False: it takes no more.
  bool submit() {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int n = ::io_uring_submit(&ring_);
      if (n > 0) continue;
      if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) return false;
      std::this_thread::yield();  // until the kernel has memory again
    }
    return true;
  }

  void finish(Read* read, int error) {
    submit_next({}, read);  // first, so that the disk goes on meanwhile
    done_(read->rest.tag, error);
    delete read;
    n_open_.fetch_sub(1);
  }

  void reap() {
    bool is_ending = false;
    while (!is_ending || n_open_.load() > 0) {
      ::io_uring_cqe* arrived = nullptr;
      if (::io_uring_wait_cqe(&ring_, &arrived) < 0) continue;
      auto* read = static_cast<Read*>(::io_uring_cqe_get_data(arrived));
      const int result = arrived->res;
      ::io_uring_cqe_seen(&ring_, arrived);
      if (read == nullptr) {
        is_ending = true;
      } else {
        take(read, result);
      }
    }
  }

  void take(Read* read, int result) {
    // The kernel cancels what a thread has asked for when that thread ends; this one stays.
    if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) return push(read);
    if (result < 0) return finish(read, -result);
    const auto n = static_cast<std::size_t>(result);
    if (n >= read->rest.n_needed) return finish(read, 0);
    if (!advance(read->rest, n)) return finish(read, kEnded);
    push(read);
  }

  ::io_uring ring_;
  Done done_;
  std::mutex submit_mutex_;  // of the ring's entries and what waits to become one
  std::deque<FilePart> waiting_;
  std::size_t bytes_under_way_ = 0;
  unsigned n_under_way_ = 0;
  std::atomic<std::int64_t> n_open_{0};
  std::thread reaper_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_uring_queue(ReadQueue::Done done) {
  ::io_uring ring{};
  if (::io_uring_queue_init(kEntries, &ring, 0) < 0) return nullptr;
  return std::make_unique<UringQueue>(ring, std::move(done));
}

}  // namespace kalibri

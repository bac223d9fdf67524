#include "engine/base/thread_pool.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/base/check.hpp"

namespace kalibri {

namespace {

// A layer is dozens of short loops: who waits looks for this long before it sleeps.
constexpr std::chrono::microseconds kSpin{50};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits for `condition` for at most kSpin; returns whether it holds.
template <typename Condition>
bool spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

}  // namespace

struct ThreadPool::Impl {
  // A loop is published by raising `generation` and over when `n_busy` is 0. Both are written under the mutex, so that
  // who sleeps cannot miss them, and read without it by who spins.
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<int> n_busy{0};  // helpers that have not finished the current loop
  std::atomic<bool> stopping{false};

  std::int64_t n = 0;
  const std::function<void(std::int64_t, int)>* task = nullptr;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;

  std::vector<std::int64_t> tasks_run;
  std::vector<std::thread> helpers;

  void work(int worker) {
    std::int64_t n_run = 0;
    try {
      for (std::int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
        (*task)(i, worker);
        ++n_run;
      }
    } catch (...) {
      next.store(n);
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
    tasks_run[static_cast<std::size_t>(worker)] += n_run;
  }

  void help(int worker) {
    for (std::uint64_t seen = 0;; ++seen) {
      const auto is_called = [&] { return stopping.load() || generation.load() != seen; };
      if (!spin_until(is_called)) {
        std::unique_lock lock(mutex);
        work_ready.wait(lock, is_called);
      }
      if (stopping.load()) return;
      work(worker);
      const std::lock_guard lock(mutex);
      if (n_busy.fetch_sub(1) == 1) work_done.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping.store(true);
    }
    work_ready.notify_all();
    for (std::thread& helper : helpers) helper.join();
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
  KALIBRI_CHECK(n_threads >= 1, "a pool has at least the calling thread");
  impl_->tasks_run.resize(static_cast<std::size_t>(n_threads));
  try {
    for (int worker = 1; worker < n_threads; ++worker) {
      impl_->helpers.emplace_back([this, worker] { impl_->help(worker); });
    }
  } catch (...) {  // the system gives no more threads; those that run must end before they can be dropped
    impl_->stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { impl_->stop(); }

int ThreadPool::n_threads() const { return static_cast<int>(impl_->tasks_run.size()); }

void ThreadPool::parallel_for(std::int64_t n, const std::function<void(std::int64_t, int)>& task) {
  if (n <= 0) return;
  impl_->n = n;
  impl_->task = &task;
  impl_->next.store(0);
  impl_->error = nullptr;
  const bool needs_help = n > 1 && !impl_->helpers.empty();
  if (needs_help) {
    {
      const std::lock_guard lock(impl_->mutex);
      impl_->n_busy.store(static_cast<int>(impl_->helpers.size()));
      impl_->generation.fetch_add(1);
    }
    impl_->work_ready.notify_all();
  }
  impl_->work(0);
  const auto is_done = [&] { return impl_->n_busy.load() == 0; };
  if (!spin_until(is_done)) {
    std::unique_lock lock(impl_->mutex);
    impl_->work_done.wait(lock, is_done);
  }
  if (impl_->error != nullptr) std::rethrow_exception(impl_->error);
}

std::vector<std::int64_t> ThreadPool::tasks_run() const { return impl_->tasks_run; }

}  // namespace kalibri

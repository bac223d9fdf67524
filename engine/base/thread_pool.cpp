#include "engine/base/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/base/check.hpp"

namespace kalibri {

struct ThreadPool::Impl {
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::uint64_t generation = 0;  // rises with each loop
  int n_busy = 0;                // helpers that have not finished the current loop
  bool stopping = false;

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
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        work_ready.wait(lock, [&] { return stopping || generation != seen; });
        if (stopping) return;
        seen = generation;
      }
      work(worker);
      const std::lock_guard lock(mutex);
      if (--n_busy == 0) work_done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
  KALIBRI_CHECK(n_threads >= 1, "a pool has at least the calling thread");
  impl_->tasks_run.resize(static_cast<std::size_t>(n_threads));
  for (int worker = 1; worker < n_threads; ++worker) {
    impl_->helpers.emplace_back([this, worker] { impl_->help(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->work_ready.notify_all();
  for (std::thread& helper : impl_->helpers) helper.join();
}

int ThreadPool::n_threads() const { return static_cast<int>(impl_->tasks_run.size()); }

void ThreadPool::parallel_for(std::int64_t n, const std::function<void(std::int64_t, int)>& task) {
  if (n <= 0) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->n = n;
    impl_->task = &task;
    impl_->next.store(0);
    impl_->error = nullptr;
    impl_->n_busy = static_cast<int>(impl_->helpers.size());
    ++impl_->generation;
  }
  impl_->work_ready.notify_all();
  impl_->work(0);
  std::unique_lock lock(impl_->mutex);
  impl_->work_done.wait(lock, [&] { return impl_->n_busy == 0; });
  if (impl_->error != nullptr) std::rethrow_exception(impl_->error);
}

std::vector<std::int64_t> ThreadPool::tasks_run() const { return impl_->tasks_run; }

}  // namespace kalibri

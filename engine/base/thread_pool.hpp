// A fixed set of threads that run one indexed loop at a time. It decides who computes an index, never how: results do
// not depend on the number of threads because every index writes its own outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace kalibri {

class ThreadPool {
 public:
  /// n_threads >= 1, the caller included: ThreadPool(1) starts no thread.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int n_threads() const;

  /// Calls task(index, worker) once for every index in [0, n); 0 <= worker < n_threads(). Indices are handed out in
  /// rising order to whoever is free. Returns when all are done; the first exception of a task is thrown here, after
  /// the others have finished or been skipped. Not reentrant.
  void parallel_for(std::int64_t n, const std::function<void(std::int64_t index, int worker)>& task);

  /// Tasks run by each worker so far (for tests that want to see every thread at work).
  [[nodiscard]] std::vector<std::int64_t> tasks_run() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kalibri

#include "engine/base/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "engine/base/check.hpp"
#include "fixtures/catch.hpp"

namespace kalibri {
namespace {

TEST_CASE("every index runs exactly once, for any number of threads and indices") {
  for (const int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    CHECK(pool.n_threads() == n_threads);
    std::int64_t n_all = 0;
    for (const std::int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
      std::atomic<bool> worker_in_range = true;
      pool.parallel_for(n, [&](std::int64_t index, int worker) {
        runs[static_cast<std::size_t>(index)].fetch_add(1);
        if (worker < 0 || worker >= n_threads) worker_in_range = false;
      });
      CHECK(std::all_of(runs.begin(), runs.end(), [](const auto& count) { return count == 1; }));
      CHECK(worker_in_range);
      n_all += n;
    }
    const std::vector<std::int64_t> tasks = pool.tasks_run();
    CHECK(static_cast<int>(tasks.size()) == n_threads);
    CHECK(std::accumulate(tasks.begin(), tasks.end(), std::int64_t{0}) == n_all);
  }
}

TEST_CASE("a negative number of indices is none") {
  ThreadPool pool(2);
  int n_run = 0;
  pool.parallel_for(-1, [&](std::int64_t, int) { ++n_run; });
  CHECK(n_run == 0);
}

TEST_CASE("every thread works when there is work for each") {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::atomic<int> n_here = 0;
  pool.parallel_for(kThreads, [&](std::int64_t, int) {  // returns when all four have come
    n_here.fetch_add(1);
    while (n_here.load() < kThreads) std::this_thread::yield();
  });
  CHECK(pool.tasks_run() == std::vector<std::int64_t>(kThreads, 1));
}

TEST_CASE("results are there when the loop returns, loop after loop") {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(50);  // not atomic: the pool must order the accesses
  for (std::int64_t round = 1; round <= 3000; ++round) {
    const auto n = static_cast<std::int64_t>(values.size());
    pool.parallel_for(n, [&](std::int64_t index, int) { values[static_cast<std::size_t>(index)] += index; });
    REQUIRE(std::accumulate(values.begin(), values.end(), std::int64_t{0}) == round * n * (n - 1) / 2);
  }
}

TEST_CASE("a helper that has gone to sleep wakes up, and so does the caller") {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than the spinning
    std::atomic<int> n_here = 0;
    pool.parallel_for(2, [&](std::int64_t, int worker) {
      n_here.fetch_add(1);
      while (n_here.load() < 2) std::this_thread::yield();
      if (worker == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    CHECK(n_here == 2);
  }
  CHECK(pool.tasks_run() == std::vector<std::int64_t>{5, 5});
}

TEST_CASE("a task's exception reaches the caller, whichever thread ran it, and the pool stays usable") {
  ThreadPool pool(2);
  for (const int thrower : {0, 1}) {
    std::atomic<int> n_here = 0;
    const auto task = [&](std::int64_t, int worker) {
      n_here.fetch_add(1);
      while (n_here.load() < 2) std::this_thread::yield();
      if (worker == thrower) throw std::runtime_error("from worker " + std::to_string(worker));
    };
    CHECK_THROWS_WITH(pool.parallel_for(2, task), "from worker " + std::to_string(thrower));
  }
  std::atomic<int> n_run = 0;
  pool.parallel_for(10, [&](std::int64_t, int) { n_run.fetch_add(1); });
  CHECK(n_run == 10);
}

TEST_CASE("after an exception the indices that are left are skipped") {
  ThreadPool pool(1);
  int n_run = 0;
  CHECK_THROWS_AS(pool.parallel_for(100,
                                    [&](std::int64_t index, int) {
                                      ++n_run;
                                      if (index == 3) throw std::runtime_error("stop");
                                    }),
                  std::runtime_error);
  CHECK(n_run == 4);
}

TEST_CASE("a pool without threads is our own fault") { CHECK_THROWS_AS(ThreadPool(0), InternalError); }

}  // namespace
}  // namespace kalibri

#include "engine/runtime/read_rate.hpp"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>

#include "engine/base/anonymous_memory.hpp"
#include "engine/base/check.hpp"
#include "engine/kernels/read_sum.hpp"

namespace kalibri::runtime {

namespace {

constexpr std::size_t kPart = std::size_t{8} << 20;  // that one task reads

/// Time that this thread has been computing.
double thread_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

ReadRate::ReadRate(std::size_t n_bytes) : n_bytes_((n_bytes + kPart - 1) / kPart * kPart) {
  void* memory = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, n_bytes_, MADV_HUGEPAGE);
  std::memset(memory, 1, n_bytes_);
  data_ = static_cast<unsigned char*>(memory);
}

ReadRate::~ReadRate() { munmap(data_, n_bytes_); }

double ReadRate::measure(ThreadPool& pool) const {
  std::atomic<std::uint64_t> sum = 0;
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(static_cast<std::int64_t>(n_bytes_ / kPart), [&](std::int64_t part, int) {
    sum += kernels::read_sum(data_ + static_cast<std::size_t>(part) * kPart, kPart);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return sum > 0 ? static_cast<double>(n_bytes_) / seconds.count() : 0.0;
}

double large_pages_gain(std::span<const std::byte> mapped) {
  constexpr int kRounds = 4;
  const AnonymousMemory memory(mapped.size());
  std::memcpy(memory.data(), mapped.data(), mapped.size());
  const std::byte* places[] = {mapped.data(), memory.data()};
  double least_s[] = {1e9, 1e9};
  std::uint64_t sums[2] = {};
  for (int round = 0; round < kRounds; ++round) {
    for (const std::size_t i : {0U, 1U}) {
      const double start_s = thread_s();
      sums[i] = kernels::read_sum(reinterpret_cast<const unsigned char*>(places[i]), mapped.size());
      least_s[i] = std::min(least_s[i], thread_s() - start_s);
    }
  }
  KALIBRI_CHECK(sums[0] == sums[1], "a copy holds the same bytes");
  return least_s[0] / least_s[1];
}

}  // namespace kalibri::runtime

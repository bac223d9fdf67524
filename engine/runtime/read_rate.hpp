// This machine's memory as a ruler: how fast it can be read, which is what bounds decoding.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/base/thread_pool.hpp"

namespace kalibri::runtime {

/// Reads anonymous memory, in huge pages where the system has them, on all threads of a pool.
class ReadRate {
 public:
  /// n_bytes should be well beyond the caches. Throws std::bad_alloc.
  explicit ReadRate(std::size_t n_bytes = std::size_t{256} << 20);
  ~ReadRate();
  ReadRate(const ReadRate&) = delete;
  ReadRate& operator=(const ReadRate&) = delete;

  /// Bytes a second, of one pass over all of it.
  [[nodiscard]] double measure(ThreadPool& pool) const;

 private:
  std::size_t n_bytes_;
  unsigned char* data_;
};

/// How many times as fast the bytes of `mapped` are read when they lie in memory of their own, in large pages, by this
/// thread's own time: who else uses the machine matters little. Reads all of them several times.
double large_pages_gain(std::span<const std::byte> mapped);

}  // namespace kalibri::runtime

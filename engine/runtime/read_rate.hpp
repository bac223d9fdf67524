// This machine's memory as a ruler: how fast it can be read, which is what bounds decoding.
#pragma once

#include <cstddef>
#include <memory>

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

}  // namespace kalibri::runtime

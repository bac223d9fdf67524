#include "engine/cli/ceilings.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/thread_pool.hpp"
#include "engine/kernels/matrix_view.hpp"
#include "engine/runtime/linear.hpp"
#include "engine/runtime/read_rate.hpp"

namespace kalibri::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPatience_s = 0.7;  // for each of the three

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The best of some passes: what others do on the machine only takes away.
double memory_rate(ThreadPool& pool) {
  const runtime::ReadRate rate;
  double best = 0;
  for (const Clock::time_point start = Clock::now(); seconds_since(start) < kPatience_s;) {
    best = std::max(best, rate.measure(pool));
  }
  return best;
}

/// Descriptor of a file past the page cache, or through it where that cannot be.
class DirectFile {
 public:
  explicit DirectFile(const std::filesystem::path& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
    if (descriptor_ < 0) descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) throw Error(ErrorCode::file, path.string() + ": cannot be opened again");
  }
  ~DirectFile() { ::close(descriptor_); }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Bytes that were read, 0 at the end. Throws Error(file).
  [[nodiscard]] std::size_t read(std::byte* to, std::size_t n_bytes, std::size_t offset) const {
    const ssize_t n = ::pread(descriptor_, to, n_bytes, static_cast<off_t>(offset));
    if (n < 0) throw Error(ErrorCode::file, "a checkpoint's file cannot be read");
    return static_cast<std::size_t>(n);
  }

 private:
  int descriptor_;
};

/// Reads the largest file in pieces as large as an expert, spread over it.
double disk_rate(const checkpoint::Checkpoint& checkpoint) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  constexpr std::size_t kBlock = 4096;
  const auto size_of = [](const checkpoint::SafetensorsFile& shard) { return shard.bytes().size(); };
  const auto largest = std::ranges::max_element(checkpoint.shards(), {}, size_of);
  const DirectFile file(largest->path());
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  const std::unique_ptr<std::byte, Free> piece(static_cast<std::byte*>(std::aligned_alloc(kBlock, kPiece)));
  const std::size_t n_pieces = (size_of(*largest) + kPiece - 1) / kPiece;
  std::size_t stride = 7;  // every piece once, and not beside the last one
  while (std::gcd(stride, n_pieces) != 1) ++stride;
  std::size_t n_bytes = 0;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < n_pieces && seconds_since(start) < kPatience_s; ++i) {
    n_bytes += file.read(piece.get(), kPiece, i * stride % n_pieces * kPiece);
  }
  return static_cast<double>(n_bytes) / seconds_since(start);
}

/// Products of a bf16 matrix with many tokens.
double arithmetic_rate(ThreadPool& pool) {
  constexpr std::int64_t kSide = 2560;
  constexpr std::int64_t kTokens = 128;
  const std::vector<std::uint16_t> weights(kSide * kSide, 0x3c00);
  const std::vector<float> x(kTokens * kSide, 0.5F);
  std::vector<float> y(kTokens * kSide);
  runtime::Workers workers(pool);
  const kernels::MatrixView w{
      .format = kernels::Format::bf16, .n_rows = kSide, .n_cols = kSide, .data = weights.data()};
  double best = 0;
  for (const Clock::time_point start = Clock::now(); seconds_since(start) < kPatience_s;) {
    const Clock::time_point product = Clock::now();
    linear(workers, w, x.data(), kTokens, y.data());
    best = std::max(best, 2.0 * kTokens * kSide * kSide / seconds_since(product));
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings(const checkpoint::Checkpoint& checkpoint, int n_threads) {
  ThreadPool pool(n_threads);
  return {.memory_bytes = memory_rate(pool),
          .disk_bytes = disk_rate(checkpoint),
          .operations = arithmetic_rate(pool),
          .is_measured = true};
}

}  // namespace kalibri::cli

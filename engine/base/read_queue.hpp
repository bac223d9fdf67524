// Reads of parts of files that go on while the caller does something else: by io_uring where the kernel allows it, else
// by threads. It knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace kalibri {

/// What reads past the page cache (O_DIRECT) want their offsets, lengths and addresses to be multiples of.
inline constexpr std::size_t kDirectBlock = 4096;

/// Bytes [offset, offset + n_bytes) of an open file, to `to`; is_direct: past the page cache, all three in whole
/// blocks. The file may end behind n_needed of them.
struct FilePart {
  int descriptor = -1;
  std::uint64_t offset = 0;
  std::byte* to = nullptr;
  std::size_t n_bytes = 0;
  std::size_t n_needed = 0;
  bool is_direct = false;
  std::uint64_t tag = 0;  // the caller's name for it
};

/// Who reads. `automatic`: io_uring, or threads where the kernel forbids it. `blocking`: the caller itself, at once.
enum class ReadEngine : std::uint8_t { automatic, uring, threads, blocking };

class ReadQueue {
 public:
  /// In place of an errno: the file ended too early.
  static constexpr int kEnded = -1;
  /// Told of each part once, by any thread, when its bytes are there (error 0) or will not come (errno or kEnded). Does
  /// not throw.
  using Done = std::function<void(std::uint64_t tag, int error)>;

  /// Waits for all reads that were started.
  virtual ~ReadQueue() = default;
  /// Begins to read; memory and descriptors stay until `done` was told. Callable by several threads at once.
  virtual void start(std::span<const FilePart> parts) = 0;
  /// Who reads, for people.
  [[nodiscard]] virtual const char* name() const = 0;
};

/// Throws Error(usage) when io_uring is asked for and the kernel does not allow it.
std::unique_ptr<ReadQueue> make_read_queue(ReadEngine engine, ReadQueue::Done done);

/// Reads one part here and now; returns what `done` would be told.
int read_part(FilePart part);

/// Takes the n bytes that a read has given off the part, in whole blocks where it is direct. False: that was none, the
/// file has ended.
bool advance(FilePart& part, std::size_t n);

}  // namespace kalibri

// A kernel that takes less than it is handed: io_uring_enter may stop anywhere in a batch, when memory is short or
// after an entry that it refuses. This program has an io_uring_submit of its own, which hands it a few at a time.
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/read_queue.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace {

std::atomic<unsigned> most_at_once = ~0U;  // that the kernel takes of a batch
std::atomic<int> n_cut = 0;                // batches of which it took a part

}  // namespace

/// In the place of liburing's.
extern "C" int io_uring_submit(io_uring* ring) {
  const unsigned end = ring->sq.sqe_tail;
  const unsigned n_ready = ::io_uring_sq_ready(ring);
  const bool is_cut = n_ready > most_at_once;
  if (is_cut) {
    ++n_cut;
    ring->sq.sqe_tail = end - n_ready + most_at_once;
  }
  const int n = ::io_uring_submit_and_wait(ring, 0);
  if (is_cut) ring->sq.sqe_tail = end;
  return n;
}

namespace kalibri {
namespace {

TEST_CASE("reads that the kernel takes in several goes arrive all the same") {
  const fixtures::TempDirectory directory;
  std::string text(std::size_t{1} << 16, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761U >> 13);
  fixtures::write_file(directory.path() / "file", text);
  const int file = ::open((directory.path() / "file").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);

  constexpr std::size_t kParts = 16;
  const std::size_t n_bytes = text.size() / kParts;
  std::string read(text.size(), 0);
  std::vector<FilePart> parts;
  for (std::size_t i = 0; i < kParts; ++i) {
    parts.push_back({.descriptor = file,
                     .offset = i * n_bytes,
                     .to = reinterpret_cast<std::byte*>(read.data()) + i * n_bytes,
                     .n_bytes = n_bytes,
                     .n_needed = n_bytes,
                     .tag = i});
  }
  std::atomic<std::size_t> n_arrived = 0;
  std::atomic<int> n_errors = 0;
  const auto queue = make_read_queue(ReadEngine::automatic, [&](std::uint64_t, int error) {
    if (error != 0) ++n_errors;
    ++n_arrived;
  });
  if (std::string(queue->name()) != "io_uring") {
    ::close(file);
    KALIBRI_SKIP("io_uring is not allowed here");
  }
  most_at_once = 3;
  queue->start(parts);
  most_at_once = ~0U;
  for (int i = 0; i < 1000 && n_arrived < kParts; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(n_cut > 0);
  CHECK(n_arrived == kParts);
  CHECK(n_errors == 0);
  CHECK((read == text));
  queue->start({});  // hands over what is left, where it was forgotten, so that this case ends
  ::close(file);
}

}  // namespace
}  // namespace kalibri

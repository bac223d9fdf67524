#include "engine/base/read_queue.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/anonymous_memory.hpp"
#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri {
namespace {

/// Reads parts and waits for all of them: errors by tag.
std::map<std::uint64_t, int> read_all(ReadEngine engine, const std::vector<FilePart>& parts) {
  std::mutex mutex;
  std::condition_variable told;
  std::map<std::uint64_t, int> errors;
  std::size_t n_told = 0;
  const auto queue = make_read_queue(engine, [&](std::uint64_t tag, int error) {
    const std::lock_guard lock(mutex);
    errors[tag] = error;
    ++n_told;
    told.notify_one();
  });
  queue->start(parts);
  std::unique_lock lock(mutex);
  told.wait(lock, [&] { return n_told == parts.size(); });
  return errors;
}

/// Those that this kernel allows; threads and blocking reads always.
std::vector<ReadEngine> engines() {
  std::vector<ReadEngine> all = {ReadEngine::automatic, ReadEngine::threads, ReadEngine::blocking};
  try {
    make_read_queue(ReadEngine::uring, [](std::uint64_t, int) {});
    all.push_back(ReadEngine::uring);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    WARN("io_uring is not allowed here: " << error.what());
  }
  return all;
}

std::string counted_text(std::size_t n) {
  std::string text(n, ' ');
  for (std::size_t i = 0; i < n; ++i) text[i] = static_cast<char>(i * 2654435761U >> 13);
  return text;
}

TEST_CASE("every reader brings every part to its place, far more at once than a ring has entries") {
  const fixtures::TempDirectory directory;
  const std::string text = counted_text(1 << 20);
  fixtures::write_file(directory.path() / "f", text);
  const MappedFile file(directory.path() / "f");
  for (const ReadEngine engine : engines()) {
    std::string copy(text.size(), '\0');
    std::vector<FilePart> parts;
    for (std::uint64_t begin = 0; begin < text.size(); begin += 701) {
      const std::size_t n = std::min<std::size_t>(701, text.size() - begin);
      parts.push_back({.descriptor = file.descriptor(),
                       .offset = begin,
                       .to = reinterpret_cast<std::byte*>(copy.data() + begin),
                       .n_bytes = n,
                       .n_needed = n,
                       .tag = begin});
    }
    const auto errors = read_all(engine, parts);
    CHECK(errors.size() == parts.size());
    CHECK(std::ranges::all_of(errors, [](const auto& error) { return error.second == 0; }));
    CHECK(copy == text);
  }
}

TEST_CASE("a read past the page cache gives the same bytes and may end within its last block") {
  const fixtures::TempDirectory directory;
  const std::string text = counted_text(3 * kDirectBlock + 100);
  fixtures::write_file(directory.path() / "f", text);
  const MappedFile file(directory.path() / "f");
  const int direct = file.open_direct();
  if (direct < 0) KALIBRI_SKIP("the file system of temporary files has no direct reads");
  const AnonymousMemory memory(3 * kDirectBlock);
  for (const ReadEngine engine : engines()) {
    std::memset(memory.data(), 0, 3 * kDirectBlock);
    FilePart part{.descriptor = direct,
                  .offset = kDirectBlock,
                  .to = memory.data(),
                  .n_bytes = 3 * kDirectBlock,
                  .n_needed = 2 * kDirectBlock + 100,
                  .is_direct = true};
    CHECK(read_all(engine, {part}).at(0) == 0);
    CHECK(std::memcmp(memory.data(), text.data() + kDirectBlock, part.n_needed) == 0);
    ++part.n_needed;  // the control: one byte more than the file has
    CHECK(read_all(engine, {part}).at(0) == ReadQueue::kEnded);
  }
  ::close(direct);
}

TEST_CASE("a file that ends too early and one that cannot be read are told apart, and others still arrive") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "f", "0123456789");
  const MappedFile file(directory.path() / "f");
  const int unreadable = ::open((directory.path() / "f").c_str(), O_WRONLY);
  REQUIRE(unreadable >= 0);
  for (const ReadEngine engine : engines()) {
    std::string here(3 * 20, '\0');
    const auto part = [&](int descriptor, std::size_t n, std::uint64_t tag) {
      return FilePart{.descriptor = descriptor,
                      .to = reinterpret_cast<std::byte*>(here.data() + tag * 20),
                      .n_bytes = n,
                      .n_needed = n,
                      .tag = tag};
    };
    const auto errors =
        read_all(engine, {part(file.descriptor(), 11, 0), part(unreadable, 10, 1), part(file.descriptor(), 10, 2)});
    CHECK(errors == std::map<std::uint64_t, int>{{0, ReadQueue::kEnded}, {1, EBADF}, {2, 0}});
    CHECK(here.substr(40, 10) == "0123456789");
  }
  ::close(unreadable);
}

TEST_CASE("a read goes on when the thread that asked for it ends") {
  const fixtures::TempDirectory directory;
  const std::string text = counted_text(4 << 20);
  fixtures::write_file(directory.path() / "f", text);
  const MappedFile file(directory.path() / "f");
  for (const ReadEngine engine : engines()) {
    for (int run = 0; run < 20; ++run) {
      std::string copy(text.size(), '\0');
      std::atomic<int> n_wrong{0};
      {
        const auto queue = make_read_queue(engine, [&](std::uint64_t, int error) { n_wrong += error == 0 ? 0 : 1; });
        std::vector<FilePart> parts;
        for (std::size_t begin = 0; begin < text.size(); begin += 1 << 16) {
          parts.push_back({.descriptor = file.descriptor(),
                           .offset = begin,
                           .to = reinterpret_cast<std::byte*>(copy.data() + begin),
                           .n_bytes = 1 << 16,
                           .n_needed = 1 << 16});
        }
        std::thread([&] { queue->start(parts); }).join();
      }
      REQUIRE(n_wrong == 0);
      REQUIRE(copy == text);
    }
  }
}

TEST_CASE("a queue ends only when all its reads have") {
  const fixtures::TempDirectory directory;
  const std::string text = counted_text(8 << 20);
  fixtures::write_file(directory.path() / "f", text);
  const MappedFile file(directory.path() / "f");
  for (const ReadEngine engine : engines()) {
    std::string copy(text.size(), '\0');
    make_read_queue(engine, [](std::uint64_t, int) {})
        ->start(std::vector<FilePart>{{.descriptor = file.descriptor(),
                                       .to = reinterpret_cast<std::byte*>(copy.data()),
                                       .n_bytes = copy.size(),
                                       .n_needed = copy.size()}});
    CHECK(copy == text);
  }
}

/// Whether a part of a file arrives while one of n_bytes waits for a pipe; both arrive once that has something.
bool overtakes(std::size_t n_bytes) {
  fixtures::TempDirectory directory;
  const std::string text = counted_text(100);
  fixtures::write_file(directory.path() / "file", text);
  const MappedFile file(directory.path() / "file");
  int pipe[2] = {};
  REQUIRE(::pipe(pipe) == 0);
  std::vector<std::byte> from_pipe(n_bytes), from_file(text.size());
  std::mutex mutex;
  std::condition_variable told;
  std::vector<std::uint64_t> arrived;
  int n_errors = 0;
  bool was_first = false;
  {
    const auto queue = make_read_queue(ReadEngine::uring, [&](std::uint64_t tag, int error) {
      const std::lock_guard lock(mutex);
      n_errors += error != 0 ? 1 : 0;
      arrived.push_back(tag);
      told.notify_one();
    });
    queue->start(std::vector<FilePart>{
        {.descriptor = pipe[0], .to = from_pipe.data(), .n_bytes = n_bytes, .n_needed = 1, .tag = 1},
        {.descriptor = file.descriptor(), .to = from_file.data(), .n_bytes = 100, .n_needed = 100, .tag = 2}});
    std::unique_lock lock(mutex);
    was_first = told.wait_for(lock, std::chrono::milliseconds(200), [&] { return !arrived.empty(); });
    CHECK(::write(pipe[1], "x", 1) == 1);
    told.wait(lock, [&] { return arrived.size() == 2; });
  }
  CHECK(n_errors == 0);
  CHECK(std::memcmp(from_file.data(), text.data(), text.size()) == 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
  return was_first;
}

TEST_CASE("a read waits while more are under way than keep a disk busy") {
  if (engines().back() != ReadEngine::uring) KALIBRI_SKIP("io_uring is not allowed here");
  CHECK_FALSE(overtakes(std::size_t{16} << 20));
  bool does_overtake = false;  // on a busy machine perhaps not at once
  for (int i = 0; i < 20 && !does_overtake; ++i) does_overtake = overtakes(std::size_t{4} << 20);
  CHECK(does_overtake);
}

TEST_CASE("a direct descriptor is of the same file, or there is none") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "f", "some");
  const MappedFile file(directory.path() / "f");
  fixtures::write_file(directory.path() / "other", "else");
  std::filesystem::rename(directory.path() / "other", directory.path() / "f");
  CHECK_THROWS_WITH(file.open_direct(), Catch::Matchers::ContainsSubstring("has been replaced"));
  std::filesystem::remove(directory.path() / "f");
  CHECK_THROWS_AS(file.open_direct(), Error);
}

TEST_CASE("more memory than there can be is refused with its size") {
  CHECK_THROWS_WITH(AnonymousMemory(std::size_t{1} << 46), Catch::Matchers::ContainsSubstring("70368744177664 bytes"));
}

}  // namespace
}  // namespace kalibri

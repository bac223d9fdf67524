#include "engine/base/held_pages.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "engine/base/check.hpp"
#include "engine/base/error.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri {
namespace {

std::string bytes_of(std::size_t n) {
  std::string bytes(n, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

bool shows(const MappedFile& file, const std::string& bytes) {
  return file.bytes().size() == bytes.size() && std::memcmp(file.bytes().data(), bytes.data(), bytes.size()) == 0;
}

/// Changes the file's byte at `offset`, which shows through its mapping and not in memory that was read before.
void flip(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(~byte));
  REQUIRE(file.flush());
}

const std::size_t kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

TEST_CASE("held pages have the file's bytes at the addresses that it was mapped at, up to its odd end") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  const std::string bytes = bytes_of((std::size_t{19} << 20) + 123);
  fixtures::write_file(path, bytes);
  const MappedFile file(path);
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    const std::byte* before = file.bytes().data();
    const HeldPages all(file, {{0, bytes.size()}}, pool);
    CHECK(all.n_bytes() == (bytes.size() + kPage - 1) / kPage * kPage);
    CHECK(file.bytes().data() == before);
    CHECK(shows(file, bytes));
  }
  CHECK(shows(file, bytes));  // mapped again
}

TEST_CASE("a page is held when a part has a byte of it, and no other page") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  const std::string bytes = bytes_of(10 * kPage);
  fixtures::write_file(path, bytes);
  const MappedFile file(path);
  ThreadPool pool(1);
  const auto is_held = [&](std::size_t page) {
    const std::uint64_t at = page * kPage + 7;
    flip(path, at);
    const bool is_old = file.bytes()[at] == static_cast<std::byte>(bytes[at]);
    flip(path, at);
    return is_old;
  };
  {
    // Out of order; an empty one; the last byte of a page and the first of the next; two in one page.
    HeldPages held(file, {{7 * kPage + 5, 1}, {3 * kPage, 0}, {2 * kPage - 1, 2}, {7 * kPage + 100, 50}}, pool);
    CHECK(held.n_bytes() == 3 * kPage);
    for (std::size_t page = 0; page < 10; ++page) {
      INFO("page " << page);
      CHECK(is_held(page) == (page == 1 || page == 2 || page == 7));
    }
    const HeldPages moved = std::move(held);
    held = HeldPages();
    CHECK(is_held(7));
    CHECK(moved.n_bytes() == 3 * kPage);
    // What lies beside a part may be forgotten, however near.
    forget_pages(file.bytes().subspan(2 * kPage + 1, 5 * kPage + 4));
    CHECK(shows(file, bytes));
    CHECK(is_held(2));
    CHECK(is_held(7));
  }
  for (std::size_t page = 0; page < 10; ++page) CHECK_FALSE(is_held(page));
}

TEST_CASE("a file that has become shorter cannot be held, and is mapped as before") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  const std::string bytes = bytes_of(4 * kPage);
  fixtures::write_file(path, bytes);
  const MappedFile file(path);
  ThreadPool pool(2);
  std::filesystem::resize_file(path, 2 * kPage);
  const auto hold = [&] { const HeldPages held(file, {{0, 4 * kPage}}, pool); };
  CHECK_THROWS_WITH(hold(), path.string() + ": has become shorter while it was read");
  std::filesystem::resize_file(path, 4 * kPage);
  CHECK(std::memcmp(file.bytes().data(), bytes.data(), 2 * kPage) == 0);
}

TEST_CASE("a part beyond the end of its file is a fault of ours") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  const std::string bytes = bytes_of(2 * kPage);
  fixtures::write_file(path, bytes);
  const MappedFile file(path);
  ThreadPool pool(1);
  const auto hold = [&](HeldPages::Part part) { const HeldPages held(file, {part}, pool); };
  CHECK_NOTHROW(hold({2 * kPage, 0}));
  CHECK_NOTHROW(hold({kPage, kPage}));
  CHECK_THROWS_AS(hold({kPage, kPage + 1}), InternalError);
  CHECK_THROWS_AS(hold({2 * kPage + 1, 0}), InternalError);
  CHECK_THROWS_AS(hold({kPage, std::numeric_limits<std::size_t>::max()}), InternalError);
  CHECK(shows(file, bytes));
}

/// A pipe. A descriptor that becomes one of its ends can neither be mapped nor be read from a place.
struct Pipe {
  Pipe() { REQUIRE(::pipe(ends) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void replace(int descriptor) const { REQUIRE(::dup2(ends[0], descriptor) == descriptor); }
  int ends[2];
};

TEST_CASE("where a file cannot be mapped again its place faults, instead of having zeros in it") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  const std::string bytes = bytes_of(3 * kPage);
  fixtures::write_file(path, bytes);
  const MappedFile file(path);
  ThreadPool pool(1);
  const Pipe pipe;
  pipe.replace(file.descriptor());
  const auto hold = [&] { const HeldPages held(file, {{kPage, kPage}}, pool); };
  CHECK_THROWS_WITH(hold(), path.string() + ": cannot be mapped again after a failed read");
  // The system says where it would fault when it reads for us.
  const auto can_be_read = [&](std::size_t page) {
    return ::write(pipe.ends[1], file.bytes().data() + page * kPage, 1) == 1 || errno != EFAULT;
  };
  CHECK(can_be_read(0));
  CHECK_FALSE(can_be_read(1));
  CHECK(can_be_read(2));
}

TEST_CASE("what was read stays where the file cannot be mapped again") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  const std::string bytes = bytes_of(3 * kPage);
  fixtures::write_file(path, bytes);
  const MappedFile file(path);
  ThreadPool pool(1);
  const Pipe pipe;
  {
    const HeldPages held(file, {{kPage, kPage}}, pool);
    pipe.replace(file.descriptor());
  }
  CHECK(shows(file, bytes));
}

}  // namespace
}  // namespace kalibri

#include "engine/base/mapped_file.hpp"

#include <sys/stat.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The message with which `path` is refused; empty when it is not.
std::string refusal(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::file);
    return error.what();
  }
}

TEST_CASE("a mapped file shows the file's bytes") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  fixtures::write_file(path, "some bytes");
  const MappedFile file(path);
  CHECK(text_of(file.bytes()) == "some bytes");
  CHECK(file.path() == path);
}

TEST_CASE("an empty file has no bytes") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "f", "");
  CHECK(MappedFile(directory.path() / "f").bytes().empty());
}

TEST_CASE("what cannot be mapped is refused by its name: nothing there, a directory, a pipe") {
  const fixtures::TempDirectory directory;
  const auto missing = directory.path() / "missing";
  CHECK(refusal(missing) == missing.string() + ": cannot be opened: No such file or directory");
  CHECK(refusal(directory.path()) == directory.path().string() + ": is no regular file");
  const auto pipe = directory.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refusal(pipe) == pipe.string() + ": is no regular file");
}

TEST_CASE("moving hands the mapping over at the same address") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "a", "first");
  fixtures::write_file(directory.path() / "b", "second");
  MappedFile a(directory.path() / "a");
  const std::byte* address = a.bytes().data();
  MappedFile moved(std::move(a));
  CHECK(moved.bytes().data() == address);
  MappedFile b(directory.path() / "b");
  b = std::move(moved);
  CHECK(text_of(b.bytes()) == "first");
  CHECK(b.path().filename() == "a");
}

TEST_CASE("read copies bytes from anywhere in the file and refuses what is past its end") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "f";
  fixtures::write_file(path, "0123456789");
  const MappedFile file(path);
  std::array<std::byte, 4> out{};
  file.read(6, out);
  CHECK(text_of(out) == "6789");
  CHECK_THROWS_WITH(file.read(7, out), path.string() + ": has become shorter while it was read");
}

}  // namespace
}  // namespace kalibri

#include "reference/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw Error(fmt::format("{}: cannot be {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "opened");
  struct stat status {};
  void* start = nullptr;
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto n_bytes = static_cast<std::size_t>(is_file ? status.st_size : 0);
  if (n_bytes > 0) start = ::mmap(nullptr, n_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  ::close(descriptor);
  if (!is_file) throw Error(fmt::format("{}: is no regular file", path.string()));
  if (start == MAP_FAILED) fail(path, "mapped");
  bytes_ = {static_cast<const std::byte*>(start), n_bytes};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void drop_pages(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first_page = start / page * page;
  // Advice only: when the system does not take it, memory grows and nothing else changes.
  ::madvise(reinterpret_cast<void*>(first_page), start - first_page + bytes.size(), MADV_DONTNEED);
}

std::string read_text(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace kalibri::reference

#include "engine/base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.hpp"

namespace kalibri {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::file, path.string() + ": " + what);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
  if (descriptor_ < 0) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(path, "is no regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (mapping == MAP_FAILED) {
    const std::string reason = std::strerror(errno);
    ::close(descriptor_);
    fail(path, "cannot be mapped: " + reason);
  }
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void forget_pages(std::span<const std::byte> part) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  // Advice only: when the system does not take it, memory stays in use and nothing else changes.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ::ssize_t n_read = ::pread(descriptor_, out.data(), out.size(), static_cast<::off_t>(offset));
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read < 0) fail(path_, std::string("cannot be read: ") + std::strerror(errno));
    if (n_read == 0) fail(path_, "has become shorter while it was read");
    offset += static_cast<std::uint64_t>(n_read);
    out = out.subspan(static_cast<std::size_t>(n_read));
  }
}

int MappedFile::open_direct() const {
  const int direct = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  if (direct < 0 && errno == EINVAL) return -1;
  if (direct < 0) fail(path_, std::string("cannot be opened again: ") + std::strerror(errno));
  struct stat ours {
  }, theirs{};
  if (::fstat(descriptor_, &ours) == 0 && ::fstat(direct, &theirs) == 0 && ours.st_dev == theirs.st_dev &&
      ours.st_ino == theirs.st_ino) {
    return direct;
  }
  ::close(direct);
  fail(path_, "has been replaced while it was in use");
}

}  // namespace kalibri

#include "engine/checkpoint/output_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.hpp"

namespace kalibri::checkpoint {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path) {
  const bool is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
  throw Error(ErrorCode::file, path.string() + ": cannot be written: " + std::strerror(errno) +
                                   (is_full ? "; make room, or choose another place" : ""));
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void OutputFile::write(std::int64_t offset, std::span<const std::byte> bytes) {
  const auto begin = static_cast<::off_t>(offset);
  const auto n_bytes = static_cast<::off_t>(bytes.size());
  while (!bytes.empty()) {
    const ::ssize_t n = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<::off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_);
    offset += n;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
#ifdef __linux__
  // Advice: an error of the disk is reported by fsync all the same.
  ::sync_file_range(descriptor_, begin, n_bytes, SYNC_FILE_RANGE_WRITE);
#else
  static_cast<void>(begin + n_bytes);
#endif
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0) fail(path_);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_);
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail(folder);
  // A file system that knows no locks gives other errors: then there is none.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw Error(ErrorCode::file, folder.parent_path().string() +
                                   ": another process is converting into it; wait for its end, or name another folder");
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  if (result != 0 && errno != EINVAL) fail(folder);  // EINVAL: a file system whose folders need none
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace kalibri::checkpoint

#include "engine/checkpoint/output_file.hpp"

#include <fcntl.h>
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
  while (!bytes.empty()) {
    const ::ssize_t n = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<::off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_);
    offset += n;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0) fail(path_);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace kalibri::checkpoint

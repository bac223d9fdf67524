// A file mapped for reading. Errors name the file. It knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace kalibri {

class MappedFile {
 public:
  /// Maps the whole file read-only. Throws Error(file) when it is missing, no regular file or not readable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Copies the bytes from `offset` on into `out`, past the mapping: a fault there reads far ahead, which costs when
  /// small pieces all over a file are wanted. Throws Error(file) for a read error and when the file has become shorter.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Descriptor of the open file, for reads that bypass the mapping.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// A further descriptor, the caller's, whose reads go past the page cache; -1 where the file system has no such
  /// reads. Throws Error(file) when another file is there by now.
  [[nodiscard]] int open_direct() const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
};

/// Lets go of the memory under `part` of a mapped file's bytes; what is touched again is read again.
void forget_pages(std::span<const std::byte> part);

}  // namespace kalibri

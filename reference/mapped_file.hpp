// A file mapped for reading. Pages come in when they are touched and can be let go again, so that reading a large file
// does not keep it in memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace kalibri::reference {

class MappedFile {
 public:
  /// Throws Error when `path` cannot be opened, is no regular file, or cannot be mapped. An empty file is an empty
  /// span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Lets go of the memory under `bytes`, a part of a mapped file; it is read again when it is next touched.
void drop_pages(std::span<const std::byte> bytes);

/// The whole of a small file, such as config.json. Throws Error.
std::string read_text(const std::filesystem::path& path);

}  // namespace kalibri::reference

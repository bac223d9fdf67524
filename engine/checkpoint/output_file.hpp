// Files that are written and folders that are kept from others. It knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace kalibri::checkpoint {

/// A file that is written at any of its places by several threads.
class OutputFile {
 public:
  /// Creates or empties it. Throws Error(file), as all of these.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  /// They begin to go to the disk at once, so that `finish` has little left to wait for.
  void write(std::int64_t offset, std::span<const std::byte> bytes);
  /// All bytes have reached the disk.
  void finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A folder that one process has at a time, as long as this lives.
class FolderLock {
 public:
  /// Throws Error(file) when another process has it.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// The folder's names have reached the disk.
void sync_folder(const std::filesystem::path& folder);

/// A whole small file.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace kalibri::checkpoint

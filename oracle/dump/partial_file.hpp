// The temporary file of a run: PATH.partial, locked while a run writes it, renamed to PATH when it is whole, otherwise
// removed. It knows nothing of what is written. Private to this folder.
#pragma once

#include <filesystem>

namespace kalibri::dump {

class PartialFile {
 public:
  /// Creates and locks PATH.partial; one that a killed run left is emptied. Throws Error when the folder is missing or
  /// not writable, when PATH is something else than a file, or when another run holds the lock.
  explicit PartialFile(const std::filesystem::path& target);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Syncs the bytes to the disk and renames them to PATH. Throws Error.
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace kalibri::dump

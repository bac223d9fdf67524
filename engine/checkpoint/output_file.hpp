// A file that is written at any of its places by several threads. It knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace kalibri::checkpoint {

class OutputFile {
 public:
  /// Creates or empties it. Throws Error(file), as all of these.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  void write(std::int64_t offset, std::span<const std::byte> bytes);
  /// All bytes have reached the disk.
  void finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A whole small file.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace kalibri::checkpoint

// The folder that a command writes: its own, or a new one; nobody else's files are touched.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kalibri::cli {

/// Holds a folder against other runs while it lives.
class DirectoryLock {
 public:
  /// Throws Error(file) when another run holds `marker`, a file of that folder.
  explicit DirectoryLock(const std::filesystem::path& marker);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  DirectoryLock& operator=(DirectoryLock&&) = delete;

 private:
  int descriptor_ = -1;
};

/// Creates `directory`, or takes over one that holds `marker`: an earlier run of `command` ("kalibri verify") made it.
/// Throws Error(file) when it holds anything else, is in use by another run, or cannot be written.
[[nodiscard]] DirectoryLock open_own_directory(const std::filesystem::path& directory, const std::string& marker,
                                               const std::string& command);

/// The folder of a verification: one that an earlier one made is emptied (its reports and dumps are removed, so that
/// a run that ends early leaves no old verdict). Throws what open_own_directory throws.
[[nodiscard]] DirectoryLock open_report_directory(const std::filesystem::path& directory);

/// Writes `text` to a temporary name beside `path` and renames it. Throws Error(file), also when `path` is there and is
/// no regular file.
void write_text(const std::filesystem::path& path, const std::string& text);

/// report.json, report.md, report.html and junit.xml.
void write_report(const std::filesystem::path& directory, const nlohmann::json& report);

}  // namespace kalibri::cli

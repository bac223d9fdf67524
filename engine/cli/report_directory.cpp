#include "engine/cli/report_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

#include "engine/base/error.hpp"
#include "reports/report.hpp"

namespace kalibri::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::file, fmt::format("{}: {}", path.string(), what));
}

bool is_ours(const fs::path& file) {
  const fs::path extension = file.extension();
  return extension == ".h5" || extension == ".partial" || extension == ".json" || extension == ".md" ||
         extension == ".html" || extension == ".xml";
}

}  // namespace

DirectoryLock::DirectoryLock(const fs::path& marker) : descriptor_(::open(marker.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail(marker, "cannot be opened");
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor_);
    fail(marker.parent_path(), "is in use by another run; wait for it, or name another folder with --out");
  }
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

DirectoryLock open_own_directory(const fs::path& directory, const std::string& marker, const std::string& command) {
  std::error_code error;
  if (fs::exists(directory) && !fs::is_directory(directory)) fail(directory, "is a file; --out names a folder");
  if (!fs::exists(directory / marker)) {
    if (fs::exists(directory) && !fs::is_empty(directory)) {
      fail(directory, "holds files of something else; name an empty or new folder with --out");
    }
    fs::create_directories(directory, error);
    if (error) fail(directory, "cannot be created: " + error.message());
    write_text(directory / marker, fmt::format("made by '{}', which may replace the files in here\n", command));
  }
  return DirectoryLock(directory / marker);
}

DirectoryLock open_report_directory(const fs::path& directory) {
  DirectoryLock lock = open_own_directory(directory, ".kalibri-report", "kalibri verify");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file() && is_ours(entry.path())) fs::remove(entry.path(), error);
  }
  return lock;
}

void write_text(const fs::path& path, const std::string& text) {
  if (fs::exists(path) && !fs::is_regular_file(path)) fail(path, "is there and is no regular file; name another");
  const fs::path partial = path.string() + ".partial";
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file << text;
    file.flush();
    if (!file) fail(partial, "cannot be written: the disk is full or the folder is not writable");
  }
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) fail(path, "cannot be written: " + error.message());
}

void write_report(const fs::path& directory, const nlohmann::json& report) {
  write_text(directory / "report.md", reports::markdown(report));
  write_text(directory / "report.html", reports::html(report));
  write_text(directory / "junit.xml", reports::junit(report));
  write_text(directory / "report.json", report.dump(1) + "\n");  // last: its presence says that the run is complete
}

}  // namespace kalibri::cli

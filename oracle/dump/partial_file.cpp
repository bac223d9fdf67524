// PATH.partial by open, flock, fsync and rename.
#include "oracle/dump/partial_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "oracle/dump/error.hpp"

namespace kalibri::dump {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what, int code) {
  throw Error(path.string() + ": " + what + ": " + std::generic_category().message(code));
}

/// Whether `descriptor` is still the file called `path`: a run that just finished may have renamed it.
bool is_named(int descriptor, const std::filesystem::path& path) {
  struct stat held {};
  struct stat named {};
  return fstat(descriptor, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace

PartialFile::PartialFile(const std::filesystem::path& target) : target_(target), path_(target) {
  path_ += ".partial";
  std::error_code ignored;
  if (std::filesystem::exists(target, ignored) && !std::filesystem::is_regular_file(target, ignored)) {
    throw Error(target.string() + ": exists and is no file: give the dump another name");
  }
  do {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
      fail(path_, "cannot be created (does the folder exist, may this user write there?)", errno);
    }
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(descriptor_);
      throw Error(path_.string() + ": another run is writing it: wait for it, or give this dump another name");
    }
  } while (!is_named(descriptor_, path_));
  if (ftruncate(descriptor_, 0) != 0) fail(path_, "cannot be emptied", errno);
}

PartialFile::~PartialFile() {
  if (descriptor_ < 0) return;
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

void PartialFile::publish() {
  if (fsync(descriptor_) != 0) fail(path_, "cannot be written to the disk", errno);
  if (::rename(path_.c_str(), target_.c_str()) != 0) fail(target_, "cannot be put in place", errno);
  ::close(descriptor_);
  descriptor_ = -1;
  const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
  const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor < 0) return;  // the rename holds, only its durability is unknown
  fsync(folder_descriptor);
  ::close(folder_descriptor);
}

}  // namespace kalibri::dump

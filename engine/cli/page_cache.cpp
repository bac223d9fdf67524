#include "engine/cli/page_cache.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"

namespace kalibri::cli {

namespace {

/// Bytes of a file that are in memory.
std::int64_t resident_bytes(const MappedFile& file) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = file.bytes().size();
  std::vector<unsigned char> pages((size + page - 1) / page);
  if (pages.empty()) return 0;
  if (::mincore(const_cast<std::byte*>(file.bytes().data()), size, pages.data()) != 0) {
    throw Error(ErrorCode::file,
                file.path().string() + ": cannot be looked at in the page cache: " + std::strerror(errno));
  }
  const auto n = std::ranges::count_if(pages, [](unsigned char flags) { return (flags & 1) != 0; });
  return std::min(static_cast<std::int64_t>(size), n * static_cast<std::int64_t>(page));
}

}  // namespace

PageCacheDrop drop_from_page_cache(const std::vector<std::filesystem::path>& files) {
  PageCacheDrop drop;
  for (const std::filesystem::path& path : files) {
    const MappedFile file(path);     // mapping alone touches no page
    ::fdatasync(file.descriptor());  // pages that are not written yet are not dropped; advice, like the next line
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    drop.bytes += static_cast<std::int64_t>(file.bytes().size());
    drop.bytes_left += resident_bytes(file);
  }
  return drop;
}

}  // namespace kalibri::cli

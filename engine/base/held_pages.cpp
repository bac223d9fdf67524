#include "engine/base/held_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/base/check.hpp"
#include "engine/base/error.hpp"

namespace kalibri {

namespace {

constexpr std::size_t kReadAtOnce = std::size_t{8} << 20;

/// Whole pages, those that touch joined.
std::vector<HeldPages::Part> in_pages(std::vector<HeldPages::Part> parts) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ranges::sort(parts, {}, &HeldPages::Part::offset);
  std::vector<HeldPages::Part> pages;
  for (const HeldPages::Part& part : parts) {
    if (part.n_bytes == 0) continue;
    const std::uint64_t begin = part.offset / page * page;
    const std::uint64_t end = (part.offset + part.n_bytes + page - 1) / page * page;
    if (!pages.empty() && begin <= pages.back().offset + pages.back().n_bytes) {
      pages.back().n_bytes = std::max(pages.back().n_bytes, static_cast<std::size_t>(end - pages.back().offset));
    } else {
      pages.push_back({begin, static_cast<std::size_t>(end - begin)});
    }
  }
  return pages;
}

}  // namespace

HeldPages::HeldPages(const MappedFile& file, std::vector<Part> parts, ThreadPool& pool) : file_(&file) {
  const std::size_t size = file.bytes().size();
  for (const Part& part : parts) {
    KALIBRI_CHECK(part.offset <= size && part.n_bytes <= size - part.offset, "a held part lies in its file");
  }
  parts_ = in_pages(std::move(parts));
  try {
    take_memory();
    read(pool);
  } catch (...) {
    bool is_mapped = true;
    for (const Part& part : parts_) {
      if (map_again(part)) continue;
      ::mprotect(address(part), part.n_bytes, PROT_NONE);  // a fault, rather than zeros that are taken for weights
      is_mapped = false;
    }
    if (!is_mapped) {
      throw Error(ErrorCode::file, file.path().string() + ": cannot be mapped again after a failed read");
    }
    throw;
  }
}

HeldPages::~HeldPages() {
  for (const Part& part : parts_) map_again(part);  // where that fails, what was read stays
}

std::size_t HeldPages::n_bytes() const {
  std::size_t sum = 0;
  for (const Part& part : parts_) sum += part.n_bytes;
  return sum;
}

std::byte* HeldPages::address(const Part& part) const {
  return const_cast<std::byte*>(file_->bytes().data()) + part.offset;
}

void HeldPages::take_memory() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part part = parts_[i];
    void* at = address(part);
    if (::mmap(at, part.n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
      const int error = errno;
      parts_.resize(i);  // the others are mapped still
      throw Error(ErrorCode::usage, file_->path().string() + ": the system does not give " +
                                        std::to_string(part.n_bytes) +
                                        " bytes of memory for its weights: " + std::strerror(error));
    }
    ::madvise(at, part.n_bytes, MADV_HUGEPAGE);  // advice only
  }
}

void HeldPages::read(ThreadPool& pool) const {
  std::vector<Part> pieces;
  for (const Part& part : parts_) {
    const std::uint64_t end = std::min<std::uint64_t>(part.offset + part.n_bytes, file_->bytes().size());
    for (std::uint64_t at = part.offset; at < end; at += kReadAtOnce) {
      pieces.push_back({at, std::min(kReadAtOnce, static_cast<std::size_t>(end - at))});
    }
  }
  pool.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i, int) {
    const Part& piece = pieces[static_cast<std::size_t>(i)];
    file_->read(piece.offset, {address(piece), piece.n_bytes});
  });
  for (const Part& part : parts_) ::mprotect(address(part), part.n_bytes, PROT_READ);
}

bool HeldPages::map_again(const Part& part) const {
  return ::mmap(address(part), part.n_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file_->descriptor(),
                static_cast<::off_t>(part.offset)) != MAP_FAILED;
}

}  // namespace kalibri

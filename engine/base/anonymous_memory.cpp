#include "engine/base/anonymous_memory.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.hpp"

namespace kalibri {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::atomic<std::int64_t> live = 0;

}  // namespace

AnonymousMemory::AnonymousMemory(std::size_t n_bytes) {
  if (n_bytes == 0) return;
  void* mapping = ::mmap(nullptr, n_bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorCode::usage, "the system does not give " + std::to_string(n_bytes) +
                                      " bytes of memory: " + std::strerror(errno) + "; ask for less");
  }
  mapping_ = static_cast<std::byte*>(mapping);
  n_bytes_ = n_bytes;
  live += static_cast<std::int64_t>(n_bytes);
  const auto begin = (reinterpret_cast<std::uintptr_t>(mapping) + kHugePage - 1) / kHugePage * kHugePage;
  data_ = reinterpret_cast<std::byte*>(begin);
  ::madvise(data_, n_bytes, MADV_HUGEPAGE);  // advice only
}

AnonymousMemory::~AnonymousMemory() {
  if (mapping_ == nullptr) return;
  ::munmap(mapping_, n_bytes_ + kHugePage);
  live -= static_cast<std::int64_t>(n_bytes_);
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      n_bytes_(std::exchange(other.n_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(n_bytes_, other.n_bytes_);
  std::swap(data_, other.data_);
  return *this;
}

std::int64_t AnonymousMemory::live_bytes() { return live; }

}  // namespace kalibri

#include "engine/base/anonymous_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.hpp"

namespace kalibri {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

AnonymousMemory::AnonymousMemory(std::size_t n_bytes) {
  if (n_bytes == 0) return;
  n_mapped_ = n_bytes + kHugePage;
  void* mapping = ::mmap(nullptr, n_mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorCode::usage, "the system does not give " + std::to_string(n_bytes) +
                                      " bytes of memory: " + std::strerror(errno) + "; ask for less");
  }
  mapping_ = static_cast<std::byte*>(mapping);
  const auto begin = (reinterpret_cast<std::uintptr_t>(mapping) + kHugePage - 1) / kHugePage * kHugePage;
  data_ = reinterpret_cast<std::byte*>(begin);
  ::madvise(data_, n_bytes, MADV_HUGEPAGE);  // advice only
}

AnonymousMemory::~AnonymousMemory() {
  if (mapping_ != nullptr) ::munmap(mapping_, n_mapped_);
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      n_mapped_(std::exchange(other.n_mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(n_mapped_, other.n_mapped_);
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace kalibri

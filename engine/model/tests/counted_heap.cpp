#include "engine/model/tests/counted_heap.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> live = 0;
std::atomic<std::int64_t> peak = 0;

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const std::int64_t now = live += static_cast<std::int64_t>(malloc_usable_size(block));
  std::int64_t highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
  return block;
}

void forget(void* block) {
  live -= static_cast<std::int64_t>(malloc_usable_size(block));
  std::free(block);
}

void* aligned(std::size_t n_bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (n_bytes + unit - 1) / unit * unit));
}

}  // namespace

void* operator new(std::size_t n_bytes) { return counted(std::malloc(n_bytes > 0 ? n_bytes : 1)); }
void* operator new[](std::size_t n_bytes) { return counted(std::malloc(n_bytes > 0 ? n_bytes : 1)); }
void* operator new(std::size_t n_bytes, std::align_val_t alignment) { return aligned(n_bytes, alignment); }
void* operator new[](std::size_t n_bytes, std::align_val_t alignment) { return aligned(n_bytes, alignment); }
void operator delete(void* block) noexcept { forget(block); }
void operator delete[](void* block) noexcept { forget(block); }
void operator delete(void* block, std::size_t) noexcept { forget(block); }
void operator delete[](void* block, std::size_t) noexcept { forget(block); }
void operator delete(void* block, std::align_val_t) noexcept { forget(block); }
void operator delete[](void* block, std::align_val_t) noexcept { forget(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { forget(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { forget(block); }

namespace kalibri::test {

std::int64_t heap_bytes() { return live; }
std::int64_t heap_peak_bytes() { return peak; }
void forget_heap_peak() { peak = live.load(); }

}  // namespace kalibri::test

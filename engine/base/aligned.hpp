// Floats that begin a cache line. A vector instruction's operand of up to 64 bytes then never lies across two lines,
// which would halve the speed of what mostly loads.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace kalibri {

inline constexpr std::align_val_t kCacheLine{64};

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) noexcept {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kCacheLine)); }
  void deallocate(T* data, std::size_t) noexcept { ::operator delete(data, kCacheLine); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) = default;
};
using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

/// n floats as the system gives them: pages are touched only when used.
struct FreeAligned {
  void operator()(float* data) const noexcept { ::operator delete(data, kCacheLine); }
};
using AlignedArray = std::unique_ptr<float[], FreeAligned>;
inline AlignedArray make_aligned_array(std::size_t n) { return AlignedArray(AlignedAllocator<float>().allocate(n)); }

}  // namespace kalibri

// Memory of its own pages, large ones where the system has them: for what is read into it and then multiplied with.
#pragma once

#include <cstddef>
#include <span>

namespace kalibri {

class AnonymousMemory {
 public:
  AnonymousMemory() = default;
  /// Reserves address space; pages come when they are written. Throws Error(usage) when the system does not have that
  /// much. Begins at a multiple of 2 MiB.
  explicit AnonymousMemory(std::size_t n_bytes);
  ~AnonymousMemory();
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;
  AnonymousMemory(AnonymousMemory&& other) noexcept;
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* mapping_ = nullptr;
  std::size_t n_mapped_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace kalibri

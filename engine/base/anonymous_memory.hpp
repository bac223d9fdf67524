// Memory of its own pages, large ones where the system has them: for what is read into it and then multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>

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
  template <typename T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  /// Bytes of all of them in this process, for whoever accounts for its memory.
  [[nodiscard]] static std::int64_t live_bytes();

 private:
  std::byte* mapping_ = nullptr;
  std::size_t n_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace kalibri

// Parts of a mapped file in memory of the process's own, read once, in large pages where the system has them: where it
// keeps files in small pages, what is multiplied with for every token is read faster from there. They lie where the
// file was mapped, so that nobody who points into the file notices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/mapped_file.hpp"
#include "engine/base/thread_pool.hpp"

namespace kalibri {

class HeldPages {
 public:
  struct Part {
    std::uint64_t offset = 0;  // in the file
    std::size_t n_bytes = 0;
  };

  HeldPages() = default;
  /// Reads every page of which a part has a byte. While it does, and while this ends, nobody may be reading the file's
  /// bytes; the file must outlive this and be held once at a time. Pages that are held must not be forgotten
  /// (forget_pages): those of a range that overlaps none of the parts never are. Throws Error(file) for a read error,
  /// Error(usage) when the system does not have that much; the file is then mapped as before. Where the system does not
  /// do even that, Error(file), and reading what lacks its bytes faults.
  HeldPages(const MappedFile& file, std::vector<Part> parts, ThreadPool& pool);
  /// Maps the file again; what was read stays in its place where the system does not do that.
  ~HeldPages();
  HeldPages(const HeldPages&) = delete;
  HeldPages& operator=(const HeldPages&) = delete;
  HeldPages(HeldPages&& other) noexcept : file_(other.file_), parts_(std::exchange(other.parts_, {})) {}
  HeldPages& operator=(HeldPages&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(parts_, other.parts_);
    return *this;
  }

  [[nodiscard]] std::size_t n_bytes() const;

 private:
  [[nodiscard]] std::byte* address(const Part& part) const;
  void take_memory();
  void read(ThreadPool& pool) const;
  bool map_again(const Part& part) const;

  const MappedFile* file_ = nullptr;
  std::vector<Part> parts_;  // whole pages, ascending
};

}  // namespace kalibri

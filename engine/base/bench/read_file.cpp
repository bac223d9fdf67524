// kalibri-read-file FILE BLOCK: what a disk gives to somebody who does nothing else. Four threads read a quarter of the
// file each, in order, in requests of BLOCK bytes, past the page cache where the file system allows it, into large
// pages, which cost the system least. Writes {"bytes", "seconds"}. It shares no code with what reads experts but the
// memory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <iostream>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/anonymous_memory.hpp"
#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/base/read_queue.hpp"

namespace {

constexpr std::size_t kReaders = 4;

/// A whole number of blocks that direct reads take, or 0.
std::size_t parse_block(std::string_view text) {
  std::size_t n = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), n);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && n % kalibri::kDirectBlock == 0 ? n : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t block = argc == 3 ? parse_block(argv[2]) : 0;
  if (block == 0) {
    std::cerr << "usage: kalibri-read-file FILE BLOCK, in bytes, whole multiples of 4096\n";
    return 2;
  }
  try {
    const kalibri::MappedFile file(argv[1]);
    const int direct = file.open_direct();
    const int descriptor = direct >= 0 ? direct : file.descriptor();
    const std::size_t n_blocks = file.bytes().size() / block / kReaders;  // of each reader
    const kalibri::AnonymousMemory memory(kReaders * block);
    std::fill_n(memory.data(), kReaders * block, std::byte{});  // pages are made before the clock runs
    std::atomic<bool> has_failed = n_blocks == 0;
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::jthread> readers;
    for (std::size_t i = 0; i < kReaders; ++i) {
      readers.emplace_back([&, i] {
        for (std::size_t k = i * n_blocks; k < (i + 1) * n_blocks && !has_failed; ++k) {
          const auto n = ::pread(descriptor, memory.data() + i * block, block, static_cast<::off_t>(k * block));
          if (n != static_cast<::ssize_t>(block)) has_failed = true;
        }
      });
    }
    readers.clear();  // joins them
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (has_failed) throw kalibri::Error(kalibri::ErrorCode::file, fmt::format("{}: cannot be read so", argv[1]));
    std::cout << fmt::format("{{\"bytes\": {}, \"seconds\": {:.6f}}}\n", kReaders * n_blocks * block, seconds.count());
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "kalibri-read-file: " << error.what() << '\n';
    return 2;
  }
}

// The read-sum against a plain loop: whatever is read is counted, and nothing behind it.
#include "engine/kernels/read_sum.hpp"

#include <cstring>
#include <vector>

#include "fixtures/catch.hpp"

namespace kalibri::kernels {
namespace {

TEST_CASE("the read-sum is the sum of all whole words, at any address, up to a multiple of 256 bytes") {
  std::vector<unsigned char> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i * 7 + i / 256);
  for (const std::size_t n_bytes : {0U, 255U, 256U, 511U, 512U, 2304U, 4096U, 4900U}) {
    for (const std::size_t offset : {0U, 1U, 8U, 31U, 64U}) {
      std::uint64_t expected = 0;
      for (std::size_t i = 0; i < n_bytes / 256 * 256; i += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + offset + i, 8);
        expected += word;
      }
      CAPTURE(n_bytes, offset);
      CHECK(read_sum(bytes.data() + offset, n_bytes) == expected);
    }
  }
}

}  // namespace
}  // namespace kalibri::kernels

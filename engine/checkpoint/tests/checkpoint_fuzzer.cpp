// libFuzzer's entry (clang only): a config.json, a NUL, and a model.safetensors. It is opened, taken stock of with
// every value read, and fingerprinted; a fault, or an exception that is no Error, ends the process.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/error.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/inventory.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const kalibri::fixtures::TempDirectory directory;
  const std::string input(data, data + size);
  const std::size_t end = std::min(input.find('\0'), size);
  kalibri::fixtures::write_file(directory.path() / "config.json", input.substr(0, end));
  kalibri::fixtures::write_file(directory.path() / "model.safetensors", input.substr(std::min(end + 1, size)));
  try {
    const auto checkpoint = kalibri::checkpoint::Checkpoint::open(directory.path());
    static_cast<void>(kalibri::checkpoint::fingerprint(checkpoint));
    static_cast<void>(kalibri::checkpoint::take_inventory(checkpoint, /*check_values=*/true));
  } catch (const kalibri::Error&) {  // refused
  }
  return 0;
}

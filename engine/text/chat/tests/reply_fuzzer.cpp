// libFuzzer's entry (clang only): any bytes as a reply. A fault or a difference ends the process.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "engine/text/chat/tests/check_reply.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  try {
    kalibri::chat::check_reply(text, size == 0 ? 0 : data[0]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    std::abort();
  }
  return 0;
}

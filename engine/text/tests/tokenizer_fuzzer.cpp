// libFuzzer's entry (clang only): a tokenizer.json, a NUL, and a text of any bytes. A fault ends the process, and so
// does a tokenizer that is taken and then contradicts itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "engine/base/error.hpp"
#include "engine/text/tokenizer.hpp"

namespace kalibri::text {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::cerr << what << '\n';
  std::abort();
}

void check(std::string_view json, std::string_view text) {
  const auto tokenizer = Tokenizer::parse(std::as_bytes(std::span(json)), "tokenizer.json");
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  require(ids == tokenizer.encode(to_utf8(text)), "ill-formed text is not what it is read as");
  for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.n_ids(), "an id is out of range");
  for (const bool skip_special : {false, true}) {
    const std::string whole = tokenizer.decode(ids, skip_special);
    StreamDecoder decoder(tokenizer, skip_special);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += decoder.feed(id);
    streamed += decoder.flush();
    require(streamed == whole && is_utf8(whole), "the stream is not the whole");
  }
}

}  // namespace
}  // namespace kalibri::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(data, data + size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view all = input;
  try {
    kalibri::text::check(all.substr(0, end), all.substr(std::min(end + 1, size)));
  } catch (const kalibri::Error&) {  // refused
  }
  return 0;
}

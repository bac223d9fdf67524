// The fingerprint, byte by byte as its definition says, built here without the code under test.
#include <fmt/format.h>
#include <openssl/sha.h>

#include <filesystem>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::checkpoint {
namespace {

constexpr std::size_t kBlock = 65536;

std::string sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

/// Bytes in which no two blocks are alike.
std::string varied(std::size_t n) {
  std::string text(n, '\0');
  std::uint32_t state = 1;
  for (char& c : text) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

std::string header_for(const std::string& name, std::size_t n_bytes) {
  return fmt::format(R"({{"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}}  )", name, n_bytes, n_bytes);
}

/// What a shard adds before its data: its name, a zero byte, the file's size, the header.
std::string preamble(const std::string& name, const std::string& header, std::size_t n_data) {
  std::string text = name + '\0';
  const std::uint64_t size = 8 + header.size() + n_data;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(size >> 8 * i);
  return text + header;
}

TEST_CASE("small shards enter whole, in the order of their names") {
  const fixtures::TempDirectory directory;
  const std::string config = "{ \"a\" : 1 }\n";
  fixtures::write_file(directory.path() / "config.json", config);
  const std::string first = varied(100);
  const std::string second = varied(70'000);
  fixtures::write_file(directory.path() / "model-b.safetensors",
                       fixtures::raw_safetensors(header_for("y", second.size()), second));
  fixtures::write_file(directory.path() / "model-a.safetensors",
                       fixtures::raw_safetensors(header_for("x", first.size()), first));
  fixtures::write_file(directory.path() / "tokenizer.json", "does not enter");
  const std::string all = config + preamble("model-a.safetensors", header_for("x", first.size()), first.size()) +
                          first + preamble("model-b.safetensors", header_for("y", second.size()), second.size()) +
                          second;
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  CHECK(fingerprint(checkpoint) == sha256(all));
  CHECK(fingerprint(checkpoint, true) == sha256(all));
}

TEST_CASE("a shard without data enters with its header") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "config.json", "{}");
  fixtures::write_file(directory.path() / "model.safetensors", fixtures::raw_safetensors("{}", ""));
  CHECK(fingerprint(Checkpoint::open(directory.path())) == sha256("{}" + preamble("model.safetensors", "{}", 0)));
}

TEST_CASE("of a shard of more than 1,024 blocks, 1,024 evenly spaced ones enter, or all of it") {
  for (const std::size_t n_more : {0U, 1U, 12'345'678U}) {
    const fixtures::TempDirectory directory;
    fixtures::write_file(directory.path() / "config.json", "{}");
    const std::string data = varied(1024 * kBlock + n_more);
    const std::string header = header_for("x", data.size());
    fixtures::write_file(directory.path() / "model.safetensors", fixtures::raw_safetensors(header, data));
    const std::string start = "{}" + preamble("model.safetensors", header, data.size());
    std::string blocks;
    for (std::size_t i = 0; i < 1024; ++i) blocks += data.substr(i * (data.size() - kBlock) / 1023, kBlock);
    const Checkpoint checkpoint = Checkpoint::open(directory.path());
    CHECK(fingerprint(checkpoint) == sha256(start + blocks));
    CHECK(fingerprint(checkpoint, true) == sha256(start + data));
    CHECK((fingerprint(checkpoint) == fingerprint(checkpoint, true)) == (n_more == 0));
  }
}

TEST_CASE("one bit of config.json, of a header, of the data or of a file's name changes the fingerprint") {
  const auto of = [](const std::string& config, const std::string& tensor, const std::string& data,
                     const std::string& name) {
    const fixtures::TempDirectory directory;
    fixtures::write_file(directory.path() / "config.json", config);
    fixtures::write_file(directory.path() / name, fixtures::raw_safetensors(header_for(tensor, data.size()), data));
    return fingerprint(Checkpoint::open(directory.path()));
  };
  const std::string plain = of("{}", "x", "data", "model.safetensors");
  CHECK(plain == of("{}", "x", "data", "model.safetensors"));
  CHECK(plain != of("{ }", "x", "data", "model.safetensors"));
  CHECK(plain != of("{}", "y", "data", "model.safetensors"));
  CHECK(plain != of("{}", "x", "dat`", "model.safetensors"));
  CHECK(plain != of("{}", "x", "data", "model-1.safetensors"));
}

}  // namespace
}  // namespace kalibri::checkpoint

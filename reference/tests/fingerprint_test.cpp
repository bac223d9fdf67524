// The fingerprint against its definition, put together by hand.
#include <openssl/evp.h>

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/checkpoint.hpp"

namespace kalibri::reference::test {
namespace {

constexpr std::size_t kBlock = 65536;

std::string sha256(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n_bytes = 0;
  REQUIRE(EVP_Digest(bytes.data(), bytes.size(), digest, &n_bytes, EVP_sha256(), nullptr) == 1);
  std::string text;
  for (unsigned int i = 0; i < n_bytes; ++i) {
    text += "0123456789abcdef"[digest[i] / 16];
    text += "0123456789abcdef"[digest[i] % 16];
  }
  return text;
}

std::string little_endian(std::size_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

/// Writes a shard with one U8 tensor and returns what the fingerprint takes of it before its data.
std::string write_shard(const std::filesystem::path& file, const std::string& tensor, const std::string& data) {
  const std::string n = std::to_string(data.size());
  const std::string header =
      R"({")" + tensor + R"(":{"dtype":"U8","shape":[)" + n + R"(],"data_offsets":[0,)" + n + "]}}  ";
  fixtures::write_file(file, fixtures::raw_safetensors(header, data));
  return file.filename().string() + std::string(1, '\0') + little_endian(8 + header.size() + data.size()) + header;
}

TEST_CASE("small shards go into the fingerprint whole, in the order of their names") {
  const fixtures::TempDirectory folder;
  const std::string config = R"({"model_type": "any"})";
  fixtures::write_file(folder.path() / "config.json", config);
  const std::string b = write_shard(folder.path() / "model-b.safetensors", "x", "second");
  const std::string a = write_shard(folder.path() / "model-a.safetensors", "y", "first");
  const std::string expected = sha256(config + a + "first" + b + "second");
  CHECK(fingerprint(Checkpoint(folder.path()), false) == expected);
  CHECK(fingerprint(Checkpoint(folder.path()), true) == expected);
  fixtures::write_file(folder.path() / "config.json", config + " ");
  CHECK(fingerprint(Checkpoint(folder.path()), false) != expected);
}

TEST_CASE("of a large shard 1,024 evenly spaced blocks go in, or all bytes when asked") {
  const fixtures::TempDirectory folder;
  fixtures::write_file(folder.path() / "config.json", "{}");
  std::string data(1030 * kBlock + 12345, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761U >> 13);
  const auto expected = [&](const std::string& start) {
    std::string bytes = "{}" + start;
    for (std::size_t i = 0; i < 1024; ++i) bytes += data.substr(i * (data.size() - kBlock) / 1023, kBlock);
    return sha256(bytes);
  };
  const std::filesystem::path file = folder.path() / "model.safetensors";
  const std::string sampled = expected(write_shard(file, "x", data));
  CHECK(fingerprint(Checkpoint(folder.path()), false) == sampled);
  const std::string full = fingerprint(Checkpoint(folder.path()), true);
  CHECK(full == sha256("{}" + write_shard(file, "x", data) + data));

  data[kBlock + 50] ^= 1;  // between block 0 and block 1
  write_shard(file, "x", data);
  CHECK(fingerprint(Checkpoint(folder.path()), false) == sampled);
  CHECK(fingerprint(Checkpoint(folder.path()), true) != full);
  data.back() ^= 1;  // in the last block
  write_shard(file, "x", data);
  CHECK(fingerprint(Checkpoint(folder.path()), false) != sampled);
}

}  // namespace
}  // namespace kalibri::reference::test

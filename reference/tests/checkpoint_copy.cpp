#include "reference/tests/checkpoint_copy.hpp"

#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"

namespace kalibri::reference::test {
namespace {

constexpr std::size_t kLengthBytes = 8;

std::size_t header_length(const std::string& bytes) {
  std::size_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  return length;
}

}  // namespace

CheckpointCopy::CheckpointCopy(const std::filesystem::path& from) {
  for (const char* file : {"config.json", "model.safetensors"}) {
    fixtures::write_file(directory() / file, fixtures::read_file(from / file));  // writable, whatever `from` is
  }
}

void CheckpointCopy::edit_config(const std::function<void(nlohmann::json&)>& edit) const {
  nlohmann::json config = nlohmann::json::parse(fixtures::read_file(directory() / "config.json"));
  edit(config);
  fixtures::write_file(directory() / "config.json", config.dump(1));
}

void CheckpointCopy::edit_header(const std::function<void(nlohmann::json&)>& edit) const {
  const std::string bytes = fixtures::read_file(weights());
  const std::size_t length = header_length(bytes);
  nlohmann::json header = nlohmann::json::parse(bytes.substr(kLengthBytes, length));
  edit(header);
  fixtures::write_file(weights(), fixtures::raw_safetensors(header.dump(), bytes.substr(kLengthBytes + length)));
}

void CheckpointCopy::edit_byte(const std::string& name, std::size_t i,
                               const std::function<unsigned char(unsigned char)>& edit) const {
  const auto place = static_cast<std::size_t>(fixtures::read_safetensors_header(weights()).at(name).file_offset) + i;
  std::string bytes = fixtures::read_file(weights());
  bytes.at(place) = static_cast<char>(edit(static_cast<unsigned char>(bytes.at(place))));
  fixtures::write_file(weights(), bytes);
}

}  // namespace kalibri::reference::test

#include "reference/safetensors_writer.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "reference/error.hpp"

namespace kalibri::reference {

std::string safetensors_text(const std::vector<StoredTensor>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::size_t begin = 0;
  for (const StoredTensor& tensor : tensors) {
    const std::size_t end = begin + tensor.bytes.size();
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t n = text.size();
  std::string file(reinterpret_cast<const char*>(&n), sizeof n);
  file += text;
  for (const StoredTensor& tensor : tensors) file += tensor.bytes;
  return file;
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) throw Error(fmt::format("{}: cannot be written: is the disk full?", file.string()));
}

}  // namespace kalibri::reference

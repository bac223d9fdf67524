#include "reference/training/run_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "reference/error.hpp"
#include "reference/json.hpp"

namespace kalibri::reference::training {
namespace {

constexpr std::string_view kMagic = "kalibri-training 1\n";

std::filesystem::path state_file(const std::filesystem::path& directory) { return directory / "state"; }

std::uint64_t checksum(std::span<const float> values, std::uint64_t hash) {  // FNV-1a by words
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 0x100000001B3U;
  }
  return hash;
}

std::uint64_t checksum(const RunState& state) {
  return checksum(state.square, checksum(state.mean, checksum(state.values, 0xCBF29CE484222325U)));
}

}  // namespace

void write_run_state(const std::filesystem::path& directory, const RunState& state) {
  const std::filesystem::path file = state_file(directory);
  const std::filesystem::path fresh = file.string() + ".new";
  const nlohmann::json header = {{"model_type", state.model_type},
                                 {"size", state.size},
                                 {"step", state.step},
                                 {"next_document", state.next_document},
                                 {"n_elements", state.values.size()},
                                 {"checksum", checksum(state)}};
  std::ofstream stream(fresh, std::ios::binary);
  stream << kMagic << header.dump() << '\n';
  for (const std::vector<float>* array : {&state.values, &state.mean, &state.square}) {
    stream.write(reinterpret_cast<const char*>(array->data()),
                 static_cast<std::streamsize>(array->size() * sizeof(float)));
  }
  stream.close();
  const int descriptor = ::open(fresh.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_stored = descriptor >= 0 && ::fsync(descriptor) == 0;
  if (descriptor >= 0) ::close(descriptor);
  if (!stream || !is_stored) throw Error(fmt::format("{}: cannot be written: is the disk full?", fresh.string()));
  std::filesystem::rename(fresh, file);
}

RunState read_run_state(const std::filesystem::path& directory) {
  const std::filesystem::path file = state_file(directory);
  std::ifstream stream(file, std::ios::binary);
  std::string magic(kMagic.size(), '\0');
  std::string header;
  if (!stream.read(magic.data(), static_cast<std::streamsize>(magic.size())) || magic != kMagic ||
      !std::getline(stream, header)) {
    throw Error(fmt::format("{}: is no state of a training run", file.string()));
  }
  RunState state;
  try {
    const nlohmann::json fields = parse_json(header, file.string());
    state.model_type = fields.at("model_type").get<std::string>();
    state.size = fields.at("size").get<std::string>();
    state.step = fields.at("step").get<std::int64_t>();
    state.next_document = fields.at("next_document").get<std::uint64_t>();
    const auto n = fields.at("n_elements").get<std::size_t>();
    if (std::filesystem::file_size(file) != kMagic.size() + header.size() + 1 + 3 * n * sizeof(float)) {
      throw Error(fmt::format("{}: is not as long as its header says: it was cut short", file.string()));
    }
    for (std::vector<float>* array : {&state.values, &state.mean, &state.square}) {
      array->resize(n);
      stream.read(reinterpret_cast<char*>(array->data()), static_cast<std::streamsize>(n * sizeof(float)));
    }
    if (!stream || fields.at("checksum").get<std::uint64_t>() != checksum(state)) {
      throw Error(fmt::format("{}: its checksum does not fit: it is damaged", file.string()));
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("{}: header: {}", file.string(), error.what()));
  }
  return state;
}

bool has_run_state(const std::filesystem::path& directory) { return std::filesystem::exists(state_file(directory)); }

}  // namespace kalibri::reference::training

#include "reference/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "reference/error.hpp"
#include "reference/json.hpp"

namespace kalibri::reference {
namespace {

/// weight_map of the index: tensor name -> shard's file name.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const nlohmann::json index = parse_json(read_text(path), path.string());
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object()) {
    throw Error(fmt::format("{}: has no object 'weight_map'", path.string()));
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : weight_map->items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || std::filesystem::path(file).filename() != file) {
      throw Error(fmt::format("{}: {}: {} is no name of a file in this folder", path.string(), name, shown(shard)));
    }
    shard_of.emplace(name, file);
  }
  return shard_of;
}

std::set<std::string> model_files(const std::filesystem::path& directory) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) files.insert(name);
  }
  if (files.empty()) throw Error(fmt::format("{}: holds no model*.safetensors", directory.string()));
  return files;
}

/// Throws Error when a tensor is missing from the shard that the index names, or is in a shard but not in the index.
void check_index(const std::map<std::string, std::string>& shard_of, const std::vector<SafetensorsFile>& shards,
                 const std::filesystem::path& index) {
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const SafetensorsFile& shard : shards) by_name.emplace(shard.name(), &shard);
  for (const auto& [name, file] : shard_of) {
    if (!by_name.at(file)->tensors().contains(name)) {
      throw Error(fmt::format("{}: {}: missing, though {} places it there", file, name, index.string()));
    }
  }
  for (const SafetensorsFile& shard : shards) {
    for (const auto& [name, view] : shard.tensors()) {
      const auto entry = shard_of.find(name);
      if (entry == shard_of.end() || entry->second != shard.name()) {
        throw Error(fmt::format("{}: {}: not where {} places it", shard.name(), name, index.string()));
      }
    }
  }
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
  if (!std::filesystem::is_directory(directory)) throw Error(fmt::format("{}: is no folder", directory.string()));
  const std::filesystem::path config = directory / "config.json";
  config_bytes_ = read_text(config);
  config_ = parse_json(config_bytes_, config.string());
  if (!config_.is_object()) throw Error(fmt::format("{}: is no JSON object", config.string()));

  const std::filesystem::path index = directory / "model.safetensors.index.json";
  if (std::filesystem::exists(index)) {
    const std::map<std::string, std::string> shard_of = read_index(index);
    std::set<std::string> files;
    for (const auto& [name, file] : shard_of) files.insert(file);
    for (const std::string& file : files) shards_.emplace_back(directory / file);
    check_index(shard_of, shards_, index);
  } else {
    for (const std::string& file : model_files(directory)) shards_.emplace_back(directory / file);
  }
  for (const SafetensorsFile& shard : shards_) {
    for (const auto& [name, view] : shard.tensors()) {
      const auto [other, is_new] = tensors_.emplace(name, &view);
      if (!is_new) throw Error(fmt::format("{}: {}: also in {}", view.file, name, other->second->file));
    }
  }
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto entry = tensors_.find(name);
  return entry == tensors_.end() ? nullptr : entry->second;
}

bool Checkpoint::has_below(const std::string& prefix) const {
  const auto entry = tensors_.lower_bound(prefix);
  return entry != tensors_.end() && entry->first.starts_with(prefix);
}

const TensorView& Checkpoint::require(const std::string& name, std::span<const std::int64_t> shape,
                                      std::span<const std::string_view> dtypes) const {
  const TensorView* view = find(name);
  if (view == nullptr) {
    throw Error(fmt::format("{}: {}: missing, expected shape {}: incomplete or another family", directory_.string(),
                            name, shape_text(shape)));
  }
  if (!std::ranges::equal(view->shape, shape)) {
    throw Error(fmt::format("{}: {}: shape {}, expected {} (from config.json): damaged or another family", view->file,
                            name, shape_text(view->shape), shape_text(shape)));
  }
  if (std::ranges::find(dtypes, view->dtype) == dtypes.end()) {
    throw Error(fmt::format("{}: {}: dtype {}, expected {}", view->file, name, view->dtype, fmt::join(dtypes, " or ")));
  }
  return *view;
}

}  // namespace kalibri::reference

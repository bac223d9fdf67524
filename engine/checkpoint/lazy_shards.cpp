#include "engine/checkpoint/lazy_shards.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/checkpoint/json.hpp"
#include "engine/checkpoint/shard_list.hpp"

namespace kalibri::checkpoint {

LazyShards::LazyShards(const std::filesystem::path& directory) : directory_(directory) {
  const ShardList list = find_shards(directory, /*may_be_partial=*/true);
  files_.assign(list.files.begin(), list.files.end());
  if (list.weight_map) {
    for (const auto& [name, file] : list.weight_map->items()) places_[name] = file.get<std::string>();
    return;
  }
  for (const std::string& file : files_) {
    const SafetensorsFile& shard = opened_.emplace(file, directory / file).first->second;
    for (const auto& [name, tensor] : shard.tensors()) {
      const auto [place, is_new] = places_.emplace(name, file);
      if (is_new) continue;
      throw Error(ErrorCode::format,
                  fmt::format("{}: {}: also in {}", shard.path().string(), printable(name), place->second));
    }
  }
}

const SafetensorsFile& LazyShards::open(const std::string& file) {
  const auto found = opened_.find(file);
  if (found != opened_.end()) return found->second;
  const SafetensorsFile& shard = opened_.emplace(file, directory_ / file).first->second;
  for (const auto& [name, tensor] : shard.tensors()) {
    const auto place = places_.find(name);
    if (place != places_.end() && place->second == file) continue;
    throw Error(ErrorCode::format,
                fmt::format("{}: {}: the index does not place it there", shard.path().string(), printable(name)));
  }
  return shard;
}

const TensorView* LazyShards::find(std::string_view name) {
  const auto place = places_.find(name);
  if (place == places_.end()) return nullptr;
  const SafetensorsFile& shard = open(place->second);
  const auto tensor = shard.tensors().find(name);
  if (tensor != shard.tensors().end()) return &tensor->second;
  throw Error(ErrorCode::format, fmt::format("{}: has no tensor {}, which the index places there",
                                             shard.path().string(), printable(name)));
}

}  // namespace kalibri::checkpoint

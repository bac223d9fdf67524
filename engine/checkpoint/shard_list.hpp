// Which files of a directory are the checkpoint's shards, and what its index promises of them. It opens no shard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "engine/checkpoint/safetensors.hpp"

namespace kalibri::checkpoint {

struct ShardList {
  std::set<std::string> files;               // names of files in the directory
  std::optional<nlohmann::json> weight_map;  // the index's: tensor -> one of `files`
  std::optional<std::int64_t> total_size;    // the index's metadata.total_size
};

/// The files that model.safetensors.index.json names if it exists, else all model*.safetensors. Throws Error(file |
/// format): a bad index, a file that the others' numbering promises is missing, nothing there at all; and a file that
/// the index promises, unless it may be `partial`.
ShardList find_shards(const std::filesystem::path& directory, bool may_be_partial = false);

/// Compares the shards' tensors with the index, if there is one, in both directions. Throws Error(format).
void check_index(const ShardList& list, const std::filesystem::path& directory,
                 const std::map<std::string_view, const TensorView*>& tensors);

}  // namespace kalibri::checkpoint

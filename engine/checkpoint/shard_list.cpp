#include "engine/checkpoint/shard_list.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/checkpoint/json.hpp"

namespace kalibri::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

[[noreturn]] void fail(ErrorCode code, const fs::path& path, const std::string& text) {
  throw Error(code, fmt::format("{}: {}", path.string(), text));
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

ShardList read_index(const fs::path& path, bool may_be_partial) {
  const MappedFile file(path);
  nlohmann::json json = parse_json(file.bytes(), path);
  ShardList list;
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object()) fail(ErrorCode::format, path, "has no object 'weight_map'");
  for (const auto& [tensor, value] : weight_map->items()) {
    if (!value.is_string()) fail(ErrorCode::format, path, fmt::format("{}: no file name", printable(tensor)));
    const auto& shard = value.get_ref<const std::string&>();
    if (!is_plain_file_name(shard)) {
      fail(ErrorCode::format, path,
           fmt::format("{}: '{}' is no plain file name (shards lie beside the index)", printable(tensor),
                       printable(shard)));
    }
    std::error_code ignored;  // what cannot be looked at is not there
    if (list.files.insert(shard).second && !may_be_partial && !fs::exists(path.parent_path() / shard, ignored)) {
      fail(ErrorCode::file, path.parent_path() / shard,
           fmt::format("missing, but {} places {} there; fetch the file", kIndexName, printable(tensor)));
    }
  }
  if (const auto metadata = json.find("metadata"); metadata != json.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    if (total != metadata->end() && total->is_number_unsigned() && total->get<std::uint64_t>() <= INT64_MAX) {
      list.total_size = total->get<std::int64_t>();
    }
  }
  list.weight_map = std::move(*weight_map);
  return list;
}

/// Names like model-00003-of-00032.safetensors promise their siblings.
void check_numbering(const fs::path& directory, const std::set<std::string>& names) {
  for (const std::string& name : names) {
    const std::string stem = fs::path(name).stem().string();
    const auto is_number = [](std::string_view text) {
      return text.size() == 5 && text.find_first_not_of("0123456789") == text.npos;
    };
    if (stem.size() < 15 || stem.substr(stem.size() - 9, 4) != "-of-" || !is_number(stem.substr(stem.size() - 5)) ||
        !is_number(stem.substr(stem.size() - 14, 5))) {
      continue;
    }
    const int n_shards = std::stoi(stem.substr(stem.size() - 5));
    for (int i = 1; i <= n_shards; ++i) {
      const std::string sibling =
          fmt::format("{}{:05}-of-{:05}.safetensors", stem.substr(0, stem.size() - 14), i, n_shards);
      if (!names.contains(sibling))
        fail(ErrorCode::file, directory / sibling, fmt::format("missing, but {} is there", name));
    }
  }
}

}  // namespace

ShardList find_shards(const fs::path& directory, bool may_be_partial) {
  std::error_code error;
  if (fs::exists(directory / kIndexName, error)) return read_index(directory / kIndexName, may_be_partial);
  ShardList list;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) list.files.insert(name);
  }
  if (error) fail(ErrorCode::file, directory, "cannot be listed: " + error.message());
  if (list.files.empty()) {
    fail(ErrorCode::file, directory, fmt::format("holds neither {} nor model*.safetensors", kIndexName));
  }
  check_numbering(directory, list.files);
  return list;
}

void check_index(const ShardList& list, const fs::path& directory,
                 const std::map<std::string_view, const TensorView*>& tensors) {
  if (!list.weight_map) return;
  for (const auto& [name, value] : list.weight_map->items()) {
    const auto& shard = value.get_ref<const std::string&>();
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second->file->path().filename().native() != shard) {
      fail(ErrorCode::format, directory / shard,
           fmt::format("has no tensor {}, which {} places there", printable(name), kIndexName));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!list.weight_map->contains(name)) {
      fail(ErrorCode::format, tensor->file->path(), fmt::format("{}: not in {}", printable(name), kIndexName));
    }
  }
}

}  // namespace kalibri::checkpoint

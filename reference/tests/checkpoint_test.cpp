// Checkpoint folders: which files are read, and what an index must agree with.
#include "reference/checkpoint.hpp"

#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

/// A shard with U8 tensors of one byte each.
void write_shard(const std::filesystem::path& file, const std::vector<std::string>& names) {
  json header = json::object();
  for (std::size_t i = 0; i < names.size(); ++i) {
    header[names[i]] = {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {i, i + 1}}};
  }
  fixtures::write_file(file, fixtures::raw_safetensors(header.dump(), std::string(names.size(), 'x')));
}

/// Two shards, with tensors a, b and c, without an index.
struct Folder {
  Folder() {
    fixtures::write_file(path() / "config.json", "{}");
    write_shard(path() / "model-1.safetensors", {"a", "b"});
    write_shard(path() / "model-2.safetensors", {"c"});
    write_shard(path() / "golden.safetensors", {"a", "other"});  // none of the model's files
  }
  [[nodiscard]] const std::filesystem::path& path() const { return directory.path(); }
  void write_index(const json& weight_map) const {
    fixtures::write_file(path() / "model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  }
  [[nodiscard]] std::string complaint() const {
    try {
      const Checkpoint checkpoint(path());
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  fixtures::TempDirectory directory;
};

const json kIndex{{"a", "model-1.safetensors"}, {"b", "model-1.safetensors"}, {"c", "model-2.safetensors"}};

TEST_CASE("all model*.safetensors are read when there is no index, and no other file") {
  const Folder folder;
  const Checkpoint checkpoint(folder.path());
  REQUIRE(checkpoint.shards().size() == 2);
  CHECK(checkpoint.shards()[0].name() == "model-1.safetensors");
  CHECK(checkpoint.find("c") != nullptr);
  CHECK(checkpoint.find("other") == nullptr);
}

TEST_CASE("an index says which files are read, and every tensor is where it says") {
  const Folder folder;
  folder.write_index(kIndex);
  CHECK(folder.complaint() == "");
  write_shard(folder.path() / "model-3.safetensors", {"a"});  // not in the index: ignored
  CHECK(folder.complaint() == "");
  CHECK(Checkpoint(folder.path()).shards().size() == 2);
}

TEST_CASE("an index that does not agree with its shards is refused") {
  const Folder folder;
  json index = kIndex;
  const auto complaint = [&](const char* name, const json& shard) {
    index = kIndex;
    if (shard.is_null()) {
      index.erase(name);
    } else {
      index[name] = shard;
    }
    folder.write_index(index);
    return folder.complaint();
  };
  CHECK_THAT(complaint("d", "model-2.safetensors"), ContainsSubstring("model-2.safetensors: d: missing"));
  CHECK_THAT(complaint("d", "model-4.safetensors"), ContainsSubstring("model-4.safetensors: cannot be opened"));
  CHECK_THAT(complaint("b", json()), ContainsSubstring("model-1.safetensors: b: not where"));
  CHECK_THAT(complaint("b", "model-2.safetensors"), ContainsSubstring("model-2.safetensors: b: missing"));
  CHECK_THAT(complaint("b", "../model-1.safetensors"), ContainsSubstring("no name of a file in this folder"));
  CHECK_THAT(complaint("b", 1), ContainsSubstring("no name of a file in this folder"));
  fixtures::write_file(folder.path() / "model.safetensors.index.json", "{}");
  CHECK_THAT(folder.complaint(), ContainsSubstring("weight_map"));
  fixtures::write_file(folder.path() / "model.safetensors.index.json", "[");
  CHECK_THAT(folder.complaint(), ContainsSubstring("no valid JSON"));
}

TEST_CASE("a tensor in two shards, a config that is no object and a folder without shards are refused") {
  const Folder folder;
  write_shard(folder.path() / "model-3.safetensors", {"a"});
  CHECK_THAT(folder.complaint(), ContainsSubstring("a: also in"));
  fixtures::write_file(folder.path() / "config.json", "[]");
  CHECK_THAT(folder.complaint(), ContainsSubstring("config.json: is no JSON object"));
  fixtures::write_file(folder.path() / "config.json", "{\"a\": 1, \"a\": 1}");
  CHECK_THAT(folder.complaint(), ContainsSubstring("key \"a\" occurs twice"));
  std::filesystem::remove(folder.path() / "config.json");
  CHECK_THAT(folder.complaint(), ContainsSubstring("config.json: cannot be opened"));
  std::filesystem::create_directory(folder.path() / "config.json");
  CHECK_THAT(folder.complaint(), ContainsSubstring("config.json: is no regular file"));
}

}  // namespace
}  // namespace kalibri::reference::test

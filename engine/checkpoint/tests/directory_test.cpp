// Checkpoint directories: which files belong, and what is refused when they contradict each other.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/tests/refusal.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/shard.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::checkpoint {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

/// A directory with config.json {} to which files are added.
class Folder {
 public:
  Folder() { write("config.json", "{}"); }
  void write(const std::string& name, std::string_view bytes) const { fixtures::write_file(path() / name, bytes); }
  /// A shard with one byte for each name.
  void shard(const std::string& file, const std::vector<std::string>& names) const {
    std::string header;
    for (std::size_t i = 0; i < names.size(); ++i) {
      header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i == 0 ? "{" : ",",
                            names[i], i, i + 1);
    }
    write(file, fixtures::raw_safetensors(header + "}", std::string(names.size(), 'x')));
  }
  void index(std::string_view weight_map) const { write(kIndex, fmt::format(R"({{"weight_map":{}}})", weight_map)); }
  [[nodiscard]] const std::filesystem::path& path() const { return directory_.path(); }
  [[nodiscard]] Checkpoint open() const { return Checkpoint::open(path()); }
  void check_refused(ErrorCode code, std::initializer_list<std::string_view> parts) const {
    test::check_refused(code, parts, [&] { (void)open(); });
  }

 private:
  fixtures::TempDirectory directory_;
};

TEST_CASE("a path that is no directory is refused") {
  test::check_refused(ErrorCode::file, {"/nowhere/at/all: is no directory"},
                      [] { Checkpoint::open("/nowhere/at/all"); });
}

TEST_CASE("a directory without config.json is refused") {
  const fixtures::TempDirectory directory;
  test::check_refused(ErrorCode::file, {"config.json: cannot be opened"}, [&] { Checkpoint::open(directory.path()); });
}

TEST_CASE("a config.json that is no JSON object, has a key twice or is nested without end is refused") {
  const Folder folder;
  folder.write("config.json", "{\"hidden_size\": 3,}");
  folder.check_refused(ErrorCode::format, {"config.json: no valid JSON (byte 19)"});
  folder.write("config.json", "");
  folder.check_refused(ErrorCode::format, {"config.json: no valid JSON"});
  folder.write("config.json", "[]");
  folder.check_refused(ErrorCode::format, {"config.json: is no JSON object"});
  folder.write("config.json", R"({"a":1,"b":{"a":2},"a":3})");
  folder.check_refused(ErrorCode::format, {"config.json: key 'a' is given twice"});
  folder.write("config.json", R"({"a":[{"b":1},{"b":2,"b":2}]})");
  folder.check_refused(ErrorCode::format, {"config.json: key 'b' is given twice"});
  folder.write("config.json", R"({"a":)" + std::string(1'000'000, '['));
  folder.check_refused(ErrorCode::format, {"config.json: nested deeper than 32 levels"});
  folder.write("config.json", R"({"a":1e999})");
  folder.check_refused(ErrorCode::format, {"config.json"});
}

TEST_CASE("a directory without safetensors is refused") {
  const Folder folder;
  folder.shard("weights.safetensors", {"a"});
  folder.check_refused(ErrorCode::file, {"holds neither model.safetensors.index.json nor model*.safetensors"});
}

TEST_CASE("without an index all model*.safetensors are read and other files are not") {
  const Folder folder;
  folder.shard("model-b.safetensors", {"c"});
  folder.shard("model-a.safetensors", {"b", "a"});
  folder.write("golden.safetensors", "no safetensors at all");
  folder.write("model.bin", "neither");
  const Checkpoint checkpoint = folder.open();
  REQUIRE(checkpoint.shards().size() == 2);
  CHECK(checkpoint.shards()[0].path().filename() == "model-a.safetensors");
  CHECK(checkpoint.tensors().size() == 3);
  CHECK(checkpoint.find("c")->file->path().filename() == "model-b.safetensors");
  CHECK(checkpoint.find("d") == nullptr);
  CHECK(checkpoint.config_bytes() == "{}");
}

TEST_CASE("a tensor that two shards hold is refused") {
  const Folder folder;
  folder.shard("model-a.safetensors", {"a", "b"});
  folder.shard("model-b.safetensors", {"b"});
  folder.check_refused(ErrorCode::format, {"model-b.safetensors: b: also in model-a.safetensors"});
}

TEST_CASE("a numbered shard whose siblings are missing is refused, without an index") {
  const Folder folder;
  folder.shard("model-00001-of-00003.safetensors", {"a"});
  folder.shard("model-00003-of-00003.safetensors", {"c"});
  folder.check_refused(ErrorCode::file, {"model-00002-of-00003.safetensors: missing"});
  folder.shard("model-00002-of-00003.safetensors", {"b"});
  CHECK(folder.open().tensors().size() == 3);
}

TEST_CASE("with an index its shards are read, and files that it does not name are not") {
  const Folder folder;
  folder.shard("one", {"a"});
  folder.shard("two", {"b"});
  folder.write("model.safetensors", "left over, and no safetensors");
  folder.write(kIndex, R"({"metadata":{"total_size":2},"weight_map":{"a":"one","b":"two"}})");
  const Checkpoint checkpoint = folder.open();
  CHECK(checkpoint.shards().size() == 2);
  CHECK(checkpoint.index_total_size() == 2);
}

TEST_CASE("an index without a weight_map of strings is refused") {
  const Folder folder;
  for (const char* text : {"[]", "{}", "3", R"({"weight_map":["a"]})"}) {
    folder.write(kIndex, text);
    folder.check_refused(ErrorCode::format, {"model.safetensors.index.json: has no object 'weight_map'"});
  }
  folder.index(R"({"a":1})");
  folder.check_refused(ErrorCode::format, {"index.json: a: no file name"});
  folder.index(R"({"a":"one","a":"two"})");
  folder.check_refused(ErrorCode::format, {"index.json: key 'a' is given twice"});
}

TEST_CASE("an index that names a missing shard is refused") {
  const Folder folder;
  folder.shard("one", {"a"});
  folder.index(R"({"a":"one","b":"two"})");
  folder.check_refused(ErrorCode::file, {"/two: missing, but model.safetensors.index.json places b there"});
}

TEST_CASE("an index that leads out of the directory is refused") {
  const Folder folder;
  folder.shard("one", {"a"});
  for (const char* name : {"../one", "/etc/passwd", "sub/one", "..", ".", "", "sub\\\\one", "one\\u0000"}) {
    INFO(name);
    folder.index(fmt::format(R"({{"a":"{}"}})", name));
    folder.check_refused(ErrorCode::format, {"index.json: a: '", "is no plain file name"});
  }
}

TEST_CASE("an index that places a tensor where it is not is refused") {
  const Folder folder;
  folder.shard("one", {"a"});
  folder.shard("two", {"b"});
  folder.index(R"({"a":"one","b":"two","c":"two"})");
  folder.check_refused(ErrorCode::format, {"/two: has no tensor c, which model.safetensors.index.json places there"});
  folder.index(R"({"a":"two","b":"one"})");
  folder.check_refused(ErrorCode::format, {"/two: has no tensor a"});
}

TEST_CASE("a tensor that the index does not name is refused") {
  const Folder folder;
  folder.shard("one", {"a", "extra"});
  folder.index(R"({"a":"one"})");
  folder.check_refused(ErrorCode::format, {"/one: extra: not in model.safetensors.index.json"});
}

TEST_CASE("a golden checkpoint cut into shards holds the same tensors") {
  const auto whole = fixtures::find_golden("kolibri1-k2-fp8");
  if (!whole) KALIBRI_SKIP("golden set kolibri1-k2-fp8 missing");
  const fixtures::TempDirectory directory;
  fixtures::shard_checkpoint(*whole, directory.path() / "cut", 3);
  const Checkpoint one = Checkpoint::open(*whole);
  const Checkpoint three = Checkpoint::open(directory.path() / "cut");
  REQUIRE(three.shards().size() == 3);
  REQUIRE(three.tensors().size() == one.tensors().size());
  for (const auto& [name, tensor] : one.tensors()) {
    const TensorView* other = three.find(name);
    REQUIRE(other != nullptr);
    CHECK(other->shape == tensor->shape);
    CHECK(std::equal(tensor->bytes.begin(), tensor->bytes.end(), other->bytes.begin(), other->bytes.end()));
  }
}

}  // namespace
}  // namespace kalibri::checkpoint

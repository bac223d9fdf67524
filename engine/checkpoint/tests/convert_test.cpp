// Conversions to MLX directories: equal to the golden ones byte for byte, whole, in numeric order, whatever the
// threads; and what is refused.
#include "engine/checkpoint/convert.hpp"

#include <array>
#include <cstring>

#include "engine/checkpoint/tests/changed.hpp"
#include "engine/checkpoint/tests/refusal.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::checkpoint {
namespace {

namespace fs = std::filesystem;
using fixtures::read_file;

void run(const fs::path& from, const fs::path& to, const ConvertOptions& options, int n_threads = 2) {
  const Checkpoint checkpoint = Checkpoint::open(from);
  ThreadPool pool(n_threads);
  const ConvertPlan plan = plan_conversion(checkpoint, options);
  std::int64_t n_done = 0;
  convert(checkpoint, plan, to, pool, [&](std::int64_t n) { n_done = n; });
  CHECK(n_done == plan.n_source_bytes);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

ConvertOptions uniform(std::int64_t bits) {
  ConvertOptions options;
  options.bits = bits;
  return options;
}

/// What `to` holds: nothing missing, nothing more, and as many parameters as `from`.
Inventory whole_inventory(const Checkpoint& from, const Checkpoint& to) {
  const Inventory inventory = take_inventory(to, true);
  CHECK(inventory.problems.empty());
  CHECK(inventory.unexpected.empty());
  CHECK(inventory.n_parameters() == take_inventory(from, false).n_parameters());
  return inventory;
}

TEST_CASE("converting the golden FP8 set gives the golden MLX directories, byte for byte") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  const std::vector<std::pair<std::string, ConvertOptions>> cases = {
      {"kolibri1-k1-mlx-4bit", uniform(4)}, {"kolibri1-k1-mlx-mixed", ConvertOptions::mixed()}};
  for (const auto& [set, options] : cases) {
    const auto golden = fixtures::find_golden("mlx-affine/" + set);
    if (!source || !golden) KALIBRI_SKIP("golden set missing: " + set);
    INFO(set);
    const fixtures::TempDirectory scratch;
    const fs::path out = scratch.path() / "a folder" / "out";
    run(*source, out, options);
    CHECK(names_in(out) == std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                                 "model.safetensors.index.json"});
    CHECK((read_file(out / "model.safetensors") == read_file(*golden / "model.safetensors")));
    CHECK(read_file(out / "model.safetensors.index.json") == read_file(*golden / "model.safetensors.index.json"));
    CHECK(nlohmann::json::parse(read_file(out / "config.json")) ==
          nlohmann::json::parse(read_file(*golden / "config.json")));
    CHECK(read_file(out / "generation_config.json") == read_file(*source / "generation_config.json"));
  }
}

TEST_CASE("the same bytes come out of one thread and of five, of FP8 and of the bf16 that it stands for") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  run(*source, scratch.path() / "one", uniform(5), 1);
  run(*source, scratch.path() / "five", uniform(5), 5);
  const std::string expected = read_file(scratch.path() / "one" / "model.safetensors");
  CHECK((read_file(scratch.path() / "five" / "model.safetensors") == expected));

  ConvertOptions bf16;
  bf16.quantises = false;
  run(*source, scratch.path() / "bf16", bf16);
  CHECK_FALSE(Checkpoint::open(scratch.path() / "bf16").affine());
  CHECK(take_inventory(Checkpoint::open(scratch.path() / "bf16"), true).problems.empty());
  run(scratch.path() / "bf16", scratch.path() / "twice", uniform(5));
  CHECK((read_file(scratch.path() / "twice" / "model.safetensors") == expected));

  ConvertOptions gpu = uniform(5);
  gpu.rule = kernels::AffineRule::gpu;
  run(*source, scratch.path() / "gpu", gpu);
  CHECK((read_file(scratch.path() / "gpu" / "model.safetensors") != expected));
}

TEST_CASE("rows that groups do not divide stay bf16, stacked by number, and config.json does not list them") {
  const auto source = fixtures::find_golden("kolibri1-k2-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k2-fp8 is not there");
  const fixtures::TempDirectory scratch;
  ConvertOptions options = uniform(8);
  options.group_size = 32;
  options.expert_bits = 4;
  run(*source, scratch.path() / "out", options);
  const Checkpoint from = Checkpoint::open(*source);
  const Checkpoint to = Checkpoint::open(scratch.path() / "out");
  whole_inventory(from, to);
  REQUIRE(to.affine());
  for (std::int64_t layer = 0; layer < 10; ++layer) {
    const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
    const std::string down = mlp + "switch_mlp.down_proj";
    CHECK(to.find(down + ".scales") == nullptr);
    CHECK_FALSE(to.affine()->modules().contains(down));
    CHECK(to.affine()->modules().contains(mlp + "switch_mlp.up_proj"));
    CHECK(to.find(mlp + "gate.scales") == nullptr);
    CHECK(to.find(mlp + "expert_bias")->dtype == Dtype::f32);
    for (const std::int64_t expert : {0, 2, 10, 31}) {
      const kernels::MatrixView stored =
          from.matrix(mlp + "experts." + std::to_string(expert) + ".down_proj.weight", 64, 16, true);
      const kernels::MatrixView made = to.stacked_matrix(down + ".weight", 32, 64, 16, expert, true);
      CHECK(made.format == kernels::Format::bf16);
      for (std::int64_t row = 0; row < 64; ++row) {
        std::array<std::uint16_t, 16> rounded{};
        REQUIRE(kernels::round_row(stored, row, rounded.data()));
        CHECK(std::memcmp(rounded.data(), static_cast<const char*>(made.data) + row * 32, 32) == 0);
      }
    }
  }
}

TEST_CASE("a conversion cut into shards and layers is whole and the same, tensor by tensor") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  ConvertOptions options = ConvertOptions::mixed();
  run(*source, scratch.path() / "all", options);
  options.max_shard_bytes = 200'000;
  options.n_layers = 3;
  run(*source, scratch.path() / "cut", options);
  const Checkpoint all = Checkpoint::open(scratch.path() / "all");
  const Checkpoint cut = Checkpoint::open(scratch.path() / "cut");
  CHECK(cut.shards().size() > 3);
  CHECK(cut.shards().front().path().filename().string().starts_with("model-00001-of-0000"));
  for (const SafetensorsFile& shard : cut.shards()) CHECK(shard.data().size() <= 200'000);
  CHECK(cut.config()["num_hidden_layers"] == 3);
  CHECK(cut.config()["layer_types"].size() == 3);
  CHECK(take_inventory(cut, true).problems.empty());
  CHECK(cut.tensors().size() == 3 * 38 + 7);
  for (const auto& [name, tensor] : cut.tensors()) {
    CHECK((std::ranges::equal(tensor->bytes, all.find(name)->bytes)));
  }
  for (const std::int64_t n : {0, 6, -1}) {
    options.n_layers = n;
    test::check_refused(ErrorCode::usage, {"--layers", "expected 1 to 5"},
                        [&] { run(*source, scratch.path() / "no", options); });
  }
}

TEST_CASE(
    "qwen4_exp converts from per-expert and from fused layouts, and table, routers and constants stay as they are") {
  for (const std::string set : {"qwen4-exp-t1-fp8", "qwen4-exp-t2"}) {
    const auto source = fixtures::find_golden(set);
    if (!source) KALIBRI_SKIP("golden set missing: " + set);
    INFO(set);
    const fixtures::TempDirectory scratch;
    run(*source, scratch.path() / "out", ConvertOptions::mixed());
    const Checkpoint from = Checkpoint::open(*source);
    const Checkpoint to = Checkpoint::open(scratch.path() / "out");
    const Inventory inventory = whole_inventory(from, to);
    CHECK(inventory.kinds.at(TensorKind::expert).dtypes.contains(Dtype::u32));
    std::size_t n_kept = 0;
    for (const auto& [name, tensor] : from.tensors()) {
      if (name.find(".ple_embedding.") == name.npos && !name.ends_with("gate.weight") &&
          !name.ends_with("norm.weight")) {
        continue;
      }
      INFO(name);
      const TensorView* kept = to.find(name);
      REQUIRE(kept != nullptr);
      CHECK(kept->dtype == tensor->dtype);
      CHECK((std::ranges::equal(kept->bytes, tensor->bytes)));
      ++n_kept;
    }
    CHECK(n_kept > 20);
  }
}

TEST_CASE("options, sources and targets that cannot be used are refused before anything is written") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  const auto mlx = fixtures::find_golden("mlx-affine/kolibri1-k1-mlx-4bit");
  if (!source || !mlx) KALIBRI_SKIP("golden set missing");
  const fixtures::TempDirectory scratch;
  const fs::path out = scratch.path() / "out";
  test::check_refused(ErrorCode::usage, {"--bits", "7, expected 2, 3, 4, 5, 6 or 8"},
                      [&] { run(*source, out, uniform(7)); });
  ConvertOptions options;
  options.head_bits = 1;
  test::check_refused(ErrorCode::usage, {"--lm-head-bits", "or 0 for bf16"}, [&] { run(*source, out, options); });
  options = {};
  options.group_size = 16;
  test::check_refused(ErrorCode::usage, {"--group-size", "16"}, [&] { run(*source, out, options); });
  test::check_refused(ErrorCode::config, {"MLX directory already"}, [&] { run(*mlx, out, {}); });
  CHECK_FALSE(fs::exists(out));

  fs::create_directory(out);
  fixtures::write_file(out / "model-00001-of-00002.safetensors", "x");
  test::check_refused(ErrorCode::file, {"holds model-00001-of-00002.safetensors, a checkpoint's shard"},
                      [&] { run(*source, out, {}); });
  CHECK(read_file(out / "model-00001-of-00002.safetensors") == "x");
  fs::remove(out / "model-00001-of-00002.safetensors");
  fixtures::write_file(out / "notes.txt", "x");
  test::check_refused(ErrorCode::file, {"holds notes.txt; name a folder"}, [&] { run(*source, out, {}); });
  test::check_refused(ErrorCode::file, {"is no folder"}, [&] { run(*source, out / "notes.txt", {}); });
  test::check_refused(ErrorCode::file, {"GB will be written, but", "free there"},
                      [&] { check_room(scratch.path() / "new" / "folder", INT64_MAX); });
}

TEST_CASE("a source with a NaN, a missing or an unknown tensor is refused by name and nothing is left behind") {
  REQUIRE_GOLDEN(golden, "kolibri1-k1-fp8");
  const auto refused = [&](ErrorCode code, std::initializer_list<std::string_view> parts, const Changed& changed) {
    const fixtures::TempDirectory scratch;
    changed.write(scratch.path());
    test::check_refused(code, parts, [&] { run(scratch.path(), scratch.path() / "out", {}); });
    CHECK_FALSE(fs::exists(scratch.path() / "out"));
  };
  const std::string weight = "model.layers.3.mlp.experts.11.up_proj.weight";
  Changed changed = golden;
  changed.tensors.at(weight).bytes[7 * 128 + 5] = std::byte{0x7f};
  refused(ErrorCode::tensor, {weight, "NaN", "in row 7"}, changed);
  changed = golden;
  changed.tensors.erase(weight);
  refused(ErrorCode::tensor, {weight, "missing"}, changed);
  changed = golden;
  changed.tensors["model.layers.0.extra"] = changed.tensors.at("model.norm.weight");
  refused(ErrorCode::tensor, {"model.layers.0.extra", "would be lost"}, changed);
}

TEST_CASE("an interrupted conversion is no checkpoint and is started again, and a finished one is not overwritten") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  const fs::path out = scratch.path() / "out";
  run(*source, out, uniform(4));
  const std::string expected = read_file(out / "model.safetensors");
  test::check_refused(ErrorCode::file, {"holds"}, [&] { run(*source, out, uniform(8)); });
  CHECK((read_file(out / "model.safetensors") == expected));

  // As it would be found when the run ended while files were moved into place.
  fs::create_directory(out / ".kalibri-convert");
  fs::rename(out / "config.json", out / ".kalibri-convert" / "config.json");
  fs::rename(out / "model.safetensors", out / "model-00001-of-00007.safetensors");
  CHECK_THROWS_AS(Checkpoint::open(out), Error);
  run(*source, out, uniform(4));
  CHECK((read_file(out / "model.safetensors") == expected));
  CHECK(names_in(out).size() == 4);
}

}  // namespace
}  // namespace kalibri::checkpoint

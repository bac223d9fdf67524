// `kalibri check-dequant` from outside: golden FP8 sets hold against the bf16 sets that they were made from, and every
// way of reading them wrong, and every tensor that is not the other side's, is named.
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;
using fixtures::StoredTensor;
using fixtures::TempDirectory;
namespace fs = std::filesystem;

namespace {

constexpr const char* kWeight = "model.layers.3.mlp.experts.11.up_proj.weight";
constexpr const char* kNorm = "model.layers.2.input_layernorm.weight";

RunResult check(const fs::path& fp8, const fs::path& bf16, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"check-dequant", fp8, bf16});
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", more);
}

struct Sets {
  fs::path fp8, bf16;
};
std::optional<Sets> find_sets(const std::string& name) {
  const auto fp8 = fixtures::find_golden("kolibri1-" + name + "-fp8");
  const auto bf16 = fixtures::find_golden("kolibri1-" + name);
  if (!fp8 || !bf16) return std::nullopt;
  return Sets{*fp8, *bf16};
}

using Tensors = std::map<std::string, StoredTensor>;

void write_shard(const fs::path& file, const Tensors& tensors) {
  std::vector<fixtures::TensorDeclaration> declarations;
  for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.dtype, tensor.shape});
  fixtures::SafetensorsWriter writer(file, declarations);
  for (const auto& [name, tensor] : tensors) writer.write(tensor.bytes);
  writer.close();
}

/// The tensors in n shards with an index, dealt out in turn, so that a weight's scales lie in another shard.
void write_sharded(const fs::path& directory, const Tensors& tensors, std::size_t n) {
  fs::create_directory(directory);
  std::vector<Tensors> shards(n);
  nlohmann::json map;
  std::size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t i = next++ % n;
    shards[i][name] = tensor;
    map[name] = "part-" + std::to_string(i) + ".safetensors";
  }
  for (std::size_t i = 0; i < n; ++i) {
    write_shard(directory / ("part-" + std::to_string(i) + ".safetensors"), shards[i]);
  }
  fixtures::write_file(directory / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
}

/// What the check says of the FP8 set k1 after `change`, as JSON.
nlohmann::json after(const Sets& sets, const std::function<void(Tensors&)>& change) {
  const TempDirectory scratch;
  Tensors tensors = fixtures::read_safetensors(sets.fp8 / "model.safetensors");
  change(tensors);
  write_shard(scratch.path() / "model.safetensors", tensors);
  const RunResult run = check(scratch.path(), sets.bf16, {"--json"});
  INFO(run.err);
  REQUIRE(run.exit_status == 1);
  return nlohmann::json::parse(run.out);
}

/// One mismatch, of that tensor, in those words.
void check_only(const nlohmann::json& report, const std::string& tensor, const std::string& words) {
  CHECK(report.at("held") == false);
  REQUIRE(report.at("mismatches").size() == 1);
  CHECK(report["mismatches"][0].at("tensor") == tensor);
  CHECK_THAT(report["mismatches"][0].at("text").get<std::string>(), ContainsSubstring(words));
}

}  // namespace

TEST_CASE("Golden FP8 sets are within a code of the bf16 sets that they were made from, and the rest is identical") {
  for (const auto& [set, n_fp8, n_others] : {std::tuple{"k1", 275, 43}, std::tuple{"k2", 1030, 83}}) {
    const auto sets = find_sets(set);
    if (!sets) KALIBRI_SKIP("golden sets missing");
    const RunResult run = check(sets->fp8, sets->bf16, {"--json"});
    INFO(run.out << run.err);
    CHECK(run.exit_status == 0);
    const auto report = nlohmann::json::parse(run.out);
    CHECK(report.at("held") == true);
    CHECK(report.at("n_fp8") == n_fp8);
    CHECK(report.at("n_identical") == n_others);
    CHECK(report.at("mismatches").empty());
    // At the top, codes are 32 apart and 448 is the block's largest value: 16 of 448, and a rounding each of the scale,
    // of the weight divided by it and of the product.
    CHECK(report.at("worst_r") <= 16.0 / 448 + 3 * 0x1p-24);
    CHECK(report.at("worst_r") > 0.03);
    CHECK(check(sets->fp8, sets->bf16, {"--json", "--threads", "1"}).out == run.out);
    const RunResult text = check(sets->fp8, sets->bf16);
    CHECK_THAT(text.out, ContainsSubstring(std::to_string(n_fp8) + " FP8 tensors: worst r = 0.0357, at most 0.07"));
    CHECK_THAT(text.out, ContainsSubstring(std::to_string(n_others) + " other tensors identical\n0 mismatches\n"));
  }
}

TEST_CASE("Every way of reading the scales wrong is seen") {
  const auto sets = find_sets("k1");
  if (!sets) KALIBRI_SKIP("golden sets missing");
  for (const std::string mutant : {"fp8_divide", "fp8_no_scale", "fp8_scale_col0_only", "fp8_scale_row0_only",
                                   "fp8_scale_first_block", "fp8_block_64"}) {
    INFO(mutant);
    const RunResult run = fixtures::run_program(KALIBRI_BIN_DIR "/kalibri-mutants",
                                                {"--mutant", mutant, "check-dequant", sets->fp8, sets->bf16, "--json"});
    CHECK(run.exit_status == 1);
    const auto report = nlohmann::json::parse(run.out);
    CHECK_FALSE(report.at("mismatches").empty());
    CHECK(report.at("worst_r") > 0.07);
    CHECK(report.at("n_identical") == 43);
  }
}

TEST_CASE("One changed scale, code or bit is seen in its tensor, at its place") {
  const auto sets = find_sets("k1");
  if (!sets) KALIBRI_SKIP("golden sets missing");
  auto report = after(*sets, [](Tensors& tensors) {
    auto& exponent = tensors.at(std::string(kWeight) + "_scale_inv").bytes[3];  // of a little-endian f32
    exponent = std::byte{static_cast<unsigned char>(std::to_integer<int>(exponent) + 1)};
  });
  check_only(report, kWeight, "r = ");
  CHECK(report.at("worst_tensor") == kWeight);

  report = after(*sets, [](Tensors& tensors) { tensors.at(kWeight).bytes[7 * 128 + 5] = std::byte{0x7f}; });
  check_only(report, kWeight, "r = nan, at most 0.07 expected: nan at (7, 5)");
  CHECK(report.at("worst_r").is_null());
  CHECK(report.at("worst_tensor") == kWeight);

  report = after(*sets, [](Tensors& tensors) { tensors.at(kNorm).bytes[2 * 77] ^= std::byte{1}; });
  check_only(report, kNorm, "other bits than in");
  check_only(report, kNorm, "first at (77)");
  CHECK(report.at("n_fp8") == 275);
  CHECK(report.at("n_identical") == 42);
}

TEST_CASE("A tensor that is missing, of another shape or dtype, without its scales, or on one side only is named") {
  const auto sets = find_sets("k1");
  if (!sets) KALIBRI_SKIP("golden sets missing");
  const std::string scales = std::string(kWeight) + "_scale_inv";
  check_only(after(*sets, [](Tensors& tensors) { tensors.erase(kNorm); }), kNorm, "only, model.safetensors");
  check_only(after(*sets, [](Tensors& tensors) { tensors["model.extra"] = tensors.at(kNorm); }), "model.extra",
             "BF16 [128], missing in");
  check_only(after(*sets,
                   [](Tensors& tensors) {
                     tensors.at(kNorm).shape = {2, 64};
                   }),
             kNorm, "BF16 [2, 64], but BF16 [128] in");
  check_only(after(*sets, [](Tensors& tensors) { tensors.at(kNorm).dtype = "F16"; }), kNorm,
             "F16 [128], but BF16 [128] in");
  check_only(after(*sets, [&](Tensors& tensors) { tensors.erase(scales); }), kWeight, "_scale_inv is missing");
  check_only(after(*sets, [&](Tensors& tensors) { tensors.at(scales).dtype = "I32"; }), kWeight,
             "_scale_inv is I32 [1, 1], expected [1, 1] of F32, BF16 or F16");
  check_only(after(*sets, [&](Tensors& tensors) { tensors["alone.weight_scale_inv"] = tensors.at(scales); }),
             "alone.weight_scale_inv", "missing in");
}

TEST_CASE(
    "A shard is checked alone, wherever the other side has its tensors, and needs no shard that it does not use") {
  const auto sets = find_sets("k1");
  if (!sets) KALIBRI_SKIP("golden sets missing");
  const TempDirectory scratch;
  const fs::path fp8 = scratch.path() / "fp8";
  const fs::path bf16 = scratch.path() / "bf 16";
  write_sharded(fp8, fixtures::read_safetensors(sets->fp8 / "model.safetensors"), 4);
  write_sharded(bf16, fixtures::read_safetensors(sets->bf16 / "model.safetensors"), 3);
  CHECK(check(fp8, bf16).exit_status == 0);
  int n_fp8 = 0;
  int n_identical = 0;
  for (const char* shard : {"1", "2", "3", "4"}) {
    const RunResult run = check(fp8, bf16, {"--shard", shard, "--json"});
    INFO(run.out << run.err);
    CHECK(run.exit_status == 0);
    const auto report = nlohmann::json::parse(run.out);
    CHECK(report.at("shard") == "part-" + std::to_string(std::atoi(shard) - 1) + ".safetensors");
    n_fp8 += report.at("n_fp8").get<int>();
    n_identical += report.at("n_identical").get<int>();
  }
  CHECK(n_fp8 == 275);
  CHECK(n_identical == 43);
  const RunResult none = check(fp8, bf16, {"--shard", "5"});
  CHECK(none.exit_status == 2);
  CHECK_THAT(none.err, ContainsSubstring("--shard: 5, expected 1 to 4"));

  // One shard that has all its scales, and nothing else of its directory.
  Tensors first;
  for (auto& [name, tensor] : fixtures::read_safetensors(sets->fp8 / "model.safetensors")) {
    if (name.find("layers.0.") != name.npos) first[name] = std::move(tensor);
  }
  fs::remove(fp8 / "part-0.safetensors");
  fs::remove(fp8 / "part-2.safetensors");
  nlohmann::json map = {{"elsewhere", "part-2.safetensors"}};
  for (const auto& [name, tensor] : first) map[name] = "part-1.safetensors";
  write_shard(fp8 / "part-1.safetensors", first);
  fixtures::write_file(fp8 / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  const RunResult alone = check(fp8, bf16, {"--shard", "1", "--json"});
  INFO(alone.out << alone.err);
  CHECK(alone.exit_status == 0);
  CHECK(nlohmann::json::parse(alone.out).at("n_fp8") == 55);
  const RunResult whole = check(fp8, bf16);
  CHECK(whole.exit_status == 2);
  CHECK_THAT(whole.err, ContainsSubstring("part-2.safetensors: cannot be opened"));
}

TEST_CASE("Directories that cannot be checked are refused") {
  const auto sets = find_sets("k1");
  if (!sets) KALIBRI_SKIP("golden sets missing");
  const RunResult swapped = check(sets->bf16, sets->bf16);
  CHECK(swapped.exit_status == 2);
  CHECK_THAT(swapped.err, ContainsSubstring("holds no FP8 tensor"));
  const RunResult nothing = check(sets->fp8, sets->bf16 / "nowhere");
  CHECK(nothing.exit_status == 2);
  if (const auto mlx = fixtures::find_golden("mlx-affine/kolibri1-k1-mlx-mixed")) {
    const RunResult stacked = check(sets->fp8, *mlx);
    CHECK(stacked.exit_status == 2);
    CHECK_THAT(stacked.err, ContainsSubstring("an MLX directory (model.layers.0.mlp.switch_mlp.down_proj.biases)"));
  }
  for (const bool is_fp8 : {true, false}) {
    const fixtures::CheckpointCopy copy(is_fp8 ? sets->fp8 : sets->bf16);
    fs::resize_file(copy.weights(), fs::file_size(copy.weights()) - 1000);
    const RunResult cut = check(is_fp8 ? copy.directory() : sets->fp8, is_fp8 ? sets->bf16 : copy.directory());
    CHECK(cut.exit_status == 2);
    CHECK_THAT(cut.err, ContainsSubstring("truncated? fetch the file again"));
  }
}

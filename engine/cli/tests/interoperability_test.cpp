// What this program writes, held against the libraries that others will read it with: mlx, safetensors and h5py. Where
// Python has them not, these cases skip.
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/python.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;
using fixtures::TempDirectory;
namespace fs = std::filesystem;

namespace {

/// Runs one of the scripts beside this file.
RunResult peer(const std::string& script, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), KALIBRI_SOURCE_DIR "/engine/cli/tests/" + script);
  return fixtures::run_python(arguments);
}

bool is_missing(const RunResult& run) { return run.exit_status == 77 || run.exit_status == 127; }

RunResult convert(const fs::path& source, const fs::path& out, std::vector<std::string> more) {
  more.insert(more.begin(), {"convert", source, out});
  RunResult run = test::kalibri_program(more);
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  return run;
}

/// Rows that quantisers get wrong, at the beginning of the embedding: of zeros, constant, all negative, all positive,
/// of ties, tiny, with one outlier, and of both zeros.
void patch_special_rows(const fs::path& file, std::int64_t n_cols) {
  std::vector<std::uint16_t> rows;
  const auto add_row = [&](const auto& value) {
    for (std::int64_t j = 0; j < n_cols; ++j) {
      const float x = value(static_cast<float>(j % 61));
      std::uint32_t bits = 0;
      std::memcpy(&bits, &x, sizeof bits);
      rows.push_back(static_cast<std::uint16_t>(bits >> 16));
    }
  };
  add_row([](float) { return 0.0F; });
  add_row([](float) { return 0.75F; });
  add_row([](float x) { return -1 - x / 64; });
  add_row([](float x) { return 1 + x / 64; });
  add_row([](float x) { return x / 2 - 7.5F; });
  add_row([](float x) { return (x - 30) * 1e-9F; });
  add_row([](float x) { return x == 7 ? 1000.0F : x / 100; });
  add_row([](float x) { return x < 30 ? 0.0F : -0.0F; });
  fixtures::patch_tensor(file, "model.embed_tokens.weight", 0, std::as_bytes(std::span(rows)));
}

/// Every dataset that h5py finds is one that our reader has, with the same values; returns how many.
std::size_t check_dump(const fs::path& file) {
  const fs::path folder = file.string() + " values";
  fs::create_directory(folder);
  const RunResult run = peer("dump_peer.py", {file, folder});
  INFO(run.out.substr(0, 400) << run.err);
  REQUIRE(run.exit_status == 0);
  const dump::Reader reader(file);
  std::istringstream lines(run.out);
  std::size_t n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    INFO(line);
    const auto dataset = nlohmann::json::parse(line);
    const std::string path = dataset.at("path");
    const std::string prompt = path.substr(0, path.find('/'));
    const std::string below = path.substr(path.find('/') + 1);
    const auto info = reader.find(prompt, below);
    REQUIRE(info);
    CHECK(dataset.at("shape") == info->shape);
    const std::string bytes = fixtures::read_file(folder / dataset.at("file").get<std::string>());
    std::vector<double> theirs(bytes.size() / sizeof(double));
    std::memcpy(theirs.data(), bytes.data(), bytes.size());
    if (info->type == dump::ElementType::f32 || info->type == dump::ElementType::f64) {
      CHECK(dataset.at("dtype") == (info->type == dump::ElementType::f32 ? "float32" : "float64"));
      CHECK((reader.read_f64(prompt, below, 0, info->shape[0]) == theirs));
    } else {
      const auto ours = reader.read_i64(prompt, below, 0, info->shape[0]);
      CHECK((std::vector<double>(ours.begin(), ours.end()) == theirs));
    }
  }
  return n;
}

}  // namespace

TEST_CASE("The real mlx library quantises to the converter's bits and dequantises to the engine's") {
  const TempDirectory scratch;
  const fs::path source = scratch.path() / "source";
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_tiny();
  shape.hidden_size = 256;  // every group divides every row
  shape.moe_intermediate_size = 128;
  shape.shared_expert_intermediate_size = 128;
  shape.n_heads = 8;
  shape.n_layers = 2;
  fixtures::Kolibri1Options bf16;
  bf16.fp8 = false;
  fixtures::make_kolibri1(source, shape, bf16);
  patch_special_rows(source / "model.safetensors", shape.hidden_size);
  std::vector<std::int64_t> ids(150);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);

  std::vector<std::string> arguments = {source};
  for (const std::string bits : {"2", "3", "4", "5", "6", "8"}) {
    for (const std::string group_size : {"32", "64", "128"}) {
      const fs::path out = scratch.path() / (bits + "-" + group_size);
      convert(source, out, {"--bits", bits, "--group-size", group_size});
      const fs::path dump = out.string() + ".h5";
      const RunResult run = test::run_side(test::Side::engine, out, {{"p", ids}}, dump, {"--layers", "0"});
      INFO(run.err);
      REQUIRE(run.exit_status == 0);
      arguments.insert(arguments.end(), {out.string(), dump.string()});
    }
  }
  const RunResult all = peer("mlx_peer.py", arguments);
  if (is_missing(all)) KALIBRI_SKIP("Python has no mlx or h5py: " + all.out + all.err);
  INFO(all.out << all.err);
  CHECK(all.exit_status == 0);
  CHECK(all.out == std::to_string(18 * (2 + 2 * 10)) + " " + std::to_string(18 * ids.size()) + "\n");

  // The controls: the dump of another format, and one bit of one code.
  const auto other = peer("mlx_peer.py", {source, arguments[1], arguments[4]});
  CHECK(other.exit_status == 1);
  CHECK_THAT(other.err, ContainsSubstring("mlx dequantises to other bits"));
  fixtures::patch_tensor(fs::path(arguments[1]) / "model.safetensors", "lm_head.weight", 3,
                         std::as_bytes(std::span("x", 1)));
  const auto changed = peer("mlx_peer.py", {source, arguments[1], arguments[2]});
  CHECK(changed.exit_status == 1);
  CHECK_THAT(changed.err, ContainsSubstring("lm_head: {'group_size': 32, 'bits': 2}: mlx gives other bits"));
}

TEST_CASE("mlx and safetensors open converted directories and find every tensor as it was announced") {
  const TempDirectory scratch;
  const fs::path kolibri1 = scratch.path() / "kolibri1";
  fixtures::make_kolibri1(kolibri1, fixtures::kolibri1_tiny(), {});
  const fs::path qwen4_exp = scratch.path() / "qwen4_exp";
  fixtures::make_qwen4_exp(qwen4_exp, fixtures::qwen4_exp_tiny(), {});
  const std::vector<std::string> one_shard;
  const std::vector<std::string> many = {"--max-shard-bytes", "300000", "--group-size", "32"};
  const std::vector<std::string> bf16 = {"--no-quant"};
  for (const fs::path& source : {kolibri1, qwen4_exp}) {
    for (const auto& options : {one_shard, many, bf16}) {
      const fs::path out = scratch.path() / "out";
      std::vector<std::string> dry = options;
      dry.insert(dry.end(), {"--dry-run", "--json"});
      const fs::path layout = scratch.path() / "layout.json";
      auto announced = nlohmann::json::parse(convert(source, out, dry).out);
      fixtures::write_file(layout, announced.dump());
      convert(source, out, options);
      const RunResult opened = peer("open_peer.py", {layout, out, source});
      if (is_missing(opened)) KALIBRI_SKIP("Python has no mlx or safetensors: " + opened.out + opened.err);
      INFO(opened.out << opened.err);
      REQUIRE(opened.exit_status == 0);
      CHECK(opened.out.starts_with(std::to_string(announced.at("tensors").size()) + " "));
      CHECK(std::stoi(opened.out.substr(opened.out.find(' '))) > 20);

      // The controls: another shape announced, and one bit of a tensor that was only to be copied.
      const std::string norm = source == kolibri1 ? "model.norm.weight" : "lm_head.weight";
      if (options == bf16) {
        const std::string file = announced.at("tensors").at(norm).at("file");
        const auto byte = static_cast<char>(fixtures::read_safetensors(out / file).at(norm).bytes[5]);
        const char flipped = static_cast<char>(byte ^ 1);
        fixtures::patch_tensor(out / file, norm, 5, std::as_bytes(std::span(&flipped, 1)));
        CHECK_THAT(peer("open_peer.py", {layout, out, source}).err, ContainsSubstring("not the source's bytes"));
      }
      announced.at("tensors").at(norm).at("shape")[0] = 7;
      fixtures::write_file(layout, announced.dump());
      CHECK_THAT(peer("open_peer.py", {layout, out, source}).err, ContainsSubstring("finds another layout"));
      fs::remove_all(out);
    }
  }
}

TEST_CASE("h5py reads the dumps of both programs, every tensor with our reader's values") {
  for (const std::string set : {"kolibri1-k1-fp8", "qwen4-exp-t1-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) KALIBRI_SKIP("golden set missing: " + set);
    const TempDirectory scratch;
    for (const test::Side side : test::kSides) {
#ifndef KALIBRI_HAS_REFERENCE
      if (side == test::Side::reference) continue;
#endif
      INFO(set << ", " << test::name(side));
      const fs::path dump = scratch.path() / (std::string(test::name(side)) + ".h5");
      const test::Tokens tokens = {{"short", {3, 1, 4}}, {"long er", test::random_ids(40, 150)}};
      const RunResult run = test::run_side(side, *directory, tokens, dump, {"--taps", "all"});
      INFO(run.err);
      REQUIRE(run.exit_status == 0);
      if (is_missing(fixtures::run_python({"-c", "import h5py"})) ||
          fixtures::run_python({"-c", "import h5py"}).exit_status != 0) {
        KALIBRI_SKIP("Python has no h5py");
      }
      CHECK(check_dump(dump) > 2 * 4 * 10);
    }
  }
}

// `dump --selection` and `--experts`: the engine follows the choices of a run that chose otherwise, bit for bit, and
// refuses dumps that hold no choices it could follow.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/writer.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;

namespace {

const std::string kBin = KALIBRI_BIN_DIR;

struct Set {
  std::filesystem::path directory;
  std::string tokens;
  std::vector<std::int32_t> ids;
};

std::optional<Set> find_set(const char* name, const fixtures::TempDirectory& scratch) {
  const auto directory = fixtures::find_golden(name);
  if (!directory.has_value()) return std::nullopt;
  const auto ids = fixtures::read_safetensors(*directory / "golden.safetensors").at("input_ids").integers();
  const auto tokens = scratch.path() / (std::string(name) + ".json");
  fixtures::write_file(tokens, nlohmann::json{{"golden", ids}}.dump());
  return Set{*directory, tokens, {ids.begin(), ids.end()}};
}

RunResult run_dump(const std::string& program, const Set& set, const std::string& out, std::vector<std::string> more) {
  std::vector<std::string> arguments;
  if (more.size() > 1 && more[0] == "--mutant") {
    arguments = {more[0], more[1]};
    more.erase(more.begin(), more.begin() + 2);
  }
  arguments.insert(arguments.end(), {"dump", set.directory, "--tokens", set.tokens, "-o", out});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return fixtures::run_program(kBin + "/" + program, arguments);
}

std::vector<double> logits(const std::string& file) {
  const dump::Reader reader(file);
  return reader.read_f64("golden", "logits", 0, reader.find("golden", "logits")->shape[0]);
}

/// The first four blocks of four that each query sees: [T, 4].
std::vector<std::int32_t> first_blocks(std::size_t n_tokens) {
  std::vector<std::int32_t> blocks(n_tokens * 4, -1);
  for (std::size_t pos = 0; pos < n_tokens; ++pos) {
    for (std::size_t block = 0; block < std::min<std::size_t>(4, (pos + 1) / 4); ++block) {
      blocks[pos * 4 + block] = static_cast<std::int32_t>(block);
    }
  }
  return blocks;
}

/// A dump of the golden prompt with one layer's choices [T, width].
void write_choices(const std::string& file, const Set& set, const char* name, std::int64_t layer, std::int64_t width,
                   const std::vector<std::int32_t>& values) {
  dump::Header header;
  header.producer = "test";
  header.mode = "chained";
  dump::Writer writer(file, header);
  writer.begin_prompt("golden", set.ids, "");
  const std::int64_t dims[] = {width};
  writer.write_rows(dump::layer_path(layer, name), static_cast<std::int64_t>(set.ids.size()), dims, 0,
                    std::span<const std::int32_t>(values));
  writer.finish(0, 0);
}

}  // namespace

TEST_CASE("An engine that takes a defective run's blocks repeats that run bit for bit, decoding included") {
  const fixtures::TempDirectory scratch;
  const auto set = find_set("qwen4-exp-t1", scratch);
  if (!set.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t1 is not there");
  const std::string other = scratch.path() / "other.h5";
  const std::string own = scratch.path() / "own.h5";
  const std::string forced = scratch.path() / "forced.h5";
  REQUIRE(run_dump("kalibri-mutants", *set, other, {"--mutant", "sparse_own_block_kept", "--taps", "selected_blocks"})
              .exit_status == 0);
  REQUIRE(run_dump("kalibri", *set, own, {}).exit_status == 0);
  REQUIRE(run_dump("kalibri", *set, forced, {"--selection", other, "--chunk", "7"}).exit_status == 0);
  CHECK(logits(own) != logits(other));
  CHECK(logits(forced) == logits(other));

  const std::string decoded = scratch.path() / "decoded.h5";
  REQUIRE(run_dump("kalibri", *set, decoded, {"--selection", other, "--mode", "decode"}).exit_status == 0);
  const dump::Reader reader(decoded);
  CHECK(reader.read_f64("golden", "decode/all/logits", 0, static_cast<std::int64_t>(set->ids.size())) == logits(other));
}

TEST_CASE("An engine that takes a defective run's experts repeats that run bit for bit") {
  const fixtures::TempDirectory scratch;
  const auto set = find_set("kolibri1-k1", scratch);
  if (!set.has_value()) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const std::string other = scratch.path() / "other.h5";
  const std::string own = scratch.path() / "own.h5";
  const std::string forced = scratch.path() / "forced.h5";
  REQUIRE(run_dump("kalibri-mutants", *set, other, {"--mutant", "select_without_bias"}).exit_status == 0);
  REQUIRE(run_dump("kalibri", *set, own, {}).exit_status == 0);
  REQUIRE(run_dump("kalibri", *set, forced, {"--experts", other}).exit_status == 0);
  CHECK(logits(own) != logits(other));
  CHECK(logits(forced) == logits(other));
}

TEST_CASE("Choices that cannot be followed are refused with status 2 and a message") {
  const fixtures::TempDirectory scratch;
  const auto set = find_set("qwen4-exp-t1", scratch);
  if (!set.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t1 is not there");
  const std::string file = scratch.path() / "choices.h5";
  const std::string out = scratch.path() / "out.h5";
  const auto refused = [&](const char* option, const char* message) {
    const RunResult run = run_dump("kalibri", *set, out, {option, file});
    INFO(run.err);
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring(message));
    CHECK_FALSE(std::filesystem::exists(out));
  };
  const auto n = set->ids.size();
  SECTION("no blocks in the dump") {
    write_choices(file, *set, "expert_ids", 0, 3, std::vector<std::int32_t>(n * 3, 1));
    refused("--selection", "no layer has selected_blocks");
    refused("--experts", "layer 0, position 0: expected different experts from 0 to 7");
  }
  SECTION("experts of some layers only") {
    std::vector<std::int32_t> ids;
    for (std::size_t t = 0; t < n; ++t) ids.insert(ids.end(), {0, 1, 7});
    write_choices(file, *set, "expert_ids", 0, 3, ids);
    refused("--experts", "layer 1 has no expert_ids");
  }
  SECTION("blocks of another layer only") {
    write_choices(file, *set, "selected_blocks", 2, 4, first_blocks(n));
    refused("--selection", "layer 3 has no selected_blocks");
  }
  SECTION("a block that the query cannot see") {
    std::vector<std::int32_t> blocks = first_blocks(n);
    blocks[4 * 6] = 1;  // position 6 sees block 0 alone
    write_choices(file, *set, "selected_blocks", 3, 4, blocks);
    refused("--selection", "layer 3, position 6: selected_blocks are no rising list of complete blocks of 4 tokens");
  }
  SECTION("a block twice") {
    std::vector<std::int32_t> blocks = first_blocks(n);
    blocks[4 * 50] = blocks[4 * 50 + 1] = 3;
    write_choices(file, *set, "selected_blocks", 3, 4, blocks);
    refused("--selection", "layer 3, position 50");
  }
  SECTION("nothing to see") {
    std::vector<std::int32_t> blocks = first_blocks(n);
    blocks[4 * 3] = -1;  // position 3 has no tail
    write_choices(file, *set, "selected_blocks", 3, 4, blocks);
    refused("--selection", "layer 3, position 3");
  }
  SECTION("other tokens") {
    Set other = *set;
    other.ids[3] += 1;
    write_choices(file, other, "selected_blocks", 3, 4, first_blocks(n));
    refused("--selection", "prompt 'golden': is missing or has other tokens");
  }
  SECTION("a family without blocks") {
    const auto kolibri = find_set("kolibri1-k1", scratch);
    if (!kolibri.has_value()) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
    const RunResult run = run_dump("kalibri", *kolibri, out, {"--selection", file});
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring("a kolibri1 model selects no blocks"));
  }
}

// `inspect` as a person and as a program read it.
#include "engine/cli/inspect.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "engine/base/error.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::cli {
namespace {

using Catch::Matchers::ContainsSubstring;

struct Outcome {
  int status = 0;
  std::string text;
};

Outcome inspect(const InspectOptions& options) {
  std::ostringstream out;
  const int status = inspect_command(options, out);
  return {status, out.str()};
}

/// A copy of a golden set whose config.json asks for one layer more than there is.
class OneLayerShort {
 public:
  explicit OneLayerShort(const std::filesystem::path& golden) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(golden / name, path() / name);
    }
    auto config = nlohmann::json::parse(fixtures::read_file(path() / "config.json"));
    config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() + 1;
    config["layer_types"].push_back("full_attention");
    fixtures::write_file(path() / "config.json", config.dump());
  }
  [[nodiscard]] const std::filesystem::path& path() const { return directory_.path(); }

 private:
  fixtures::TempDirectory directory_;
};

TEST_CASE("a whole checkpoint exits 0 and shows its sums") {
  const auto golden = fixtures::find_golden("kolibri1-k1-fp8");
  if (!golden) KALIBRI_SKIP("golden set kolibri1-k1-fp8 missing");
  const Outcome outcome = inspect({.directory = *golden});
  CHECK(outcome.status == 0);
  for (const char* line : {
           "kolibri1: 5 layers (4 sliding, window 7), hidden 128, heads 6/2 of 32, 16 experts of 64, top 3, vocabulary "
           "256\n",
           "1 shard, 593 tensors, 2,741,264 parameters\n",
           "expert              240        1,966,080        1,966,080  F8_E4M3\n",
           "total               593        2,741,564        2,821,328\n",
           "\nwhole: every tensor of the family is there, of the right shape and dtype; values not looked at",
       }) {
    CHECK_THAT(outcome.text, ContainsSubstring(line));
  }
  CHECK_THAT(inspect({.directory = *golden, .full_fingerprint = true}).text,
             ContainsSubstring("right shape and dtype; every value is finite\n"));
}

TEST_CASE("a checkpoint with tensors missing exits 1 and lists the first of them") {
  const auto golden = fixtures::find_golden("kolibri1-k1");
  if (!golden) KALIBRI_SKIP("golden set kolibri1-k1 missing");
  const OneLayerShort broken(*golden);
  const Outcome outcome = inspect({.directory = broken.path()});
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.text,
             ContainsSubstring("\nproblems\n  model.layers.5.input_layernorm.weight: missing, expected [128]"));
  CHECK_THAT(outcome.text, ContainsSubstring("\n  and 43 more (--json lists all)\n"));
  CHECK_THAT(outcome.text, ContainsSubstring("\nnot whole: 63 problems\n"));
}

TEST_CASE("the JSON says the same, in full") {
  const auto golden = fixtures::find_golden("kolibri1-k1");
  if (!golden) KALIBRI_SKIP("golden set kolibri1-k1 missing");
  const Outcome good = inspect({.directory = *golden, .json = true});
  const auto json = nlohmann::json::parse(good.text);
  CHECK(good.status == 0);
  CHECK(json["whole"] == true);
  CHECK(json["model_type"] == "kolibri1");
  CHECK(json["n_parameters"] == 2'741'264);
  CHECK(json["n_tensors"] == 318);
  CHECK(json["n_bytes"] == 5'482'528);
  CHECK(json["kinds"]["shared expert"]["n_elements"] == 368'640);
  CHECK(json["kinds"]["shared expert"]["dtypes"] == std::vector<std::string>{"BF16"});
  CHECK(json["shards"].size() == 1);
  CHECK(json["shards"][0]["file"] == "model.safetensors");
  CHECK(json["fingerprint"].get<std::string>().size() == 64);
  CHECK(json["full_fingerprint"] == false);

  const OneLayerShort broken(*golden);
  const Outcome bad = inspect({.directory = broken.path(), .json = true});
  CHECK(bad.status == 1);
  const auto bad_json = nlohmann::json::parse(bad.text);
  CHECK(bad_json["whole"] == false);
  CHECK(bad_json["problems"].size() == 63);
  CHECK(bad_json["problems"][0]["tensor"] == "model.layers.5.input_layernorm.weight");
}

TEST_CASE("the second family's checkpoint shows its sums the same way, and what is left alone") {
  const auto golden = fixtures::find_golden("qwen4-exp-t1-fp8");
  if (!golden) KALIBRI_SKIP("golden set qwen4-exp-t1-fp8 missing");
  const Outcome outcome = inspect({.directory = *golden});
  CHECK(outcome.status == 0);
  for (const char* line : {
           "qwen4_exp: 4 layers (1 sparse attention: 16 tokens in blocks of 4), hidden 160 in 4 streams, heads 6/2 of "
           "32, 8 experts of 64, top 3, 1 n-gram layers, vocabulary 192\n",
           "1 shard, 299 tensors, 2,069,300 parameters\n",
           "n-gram table          4           30,720           30,720  F8_E4M3\n",
           "\nwhole: every tensor of the family is there",
       }) {
    CHECK_THAT(outcome.text, ContainsSubstring(line));
  }
  const auto json = nlohmann::json::parse(inspect({.directory = *golden, .json = true}).text);
  CHECK(json["model_type"] == "qwen4_exp");
  CHECK(json["kinds"]["expert"]["n_elements"] == 4 * 8 * 3 * 64 * 160);
  CHECK(json["kinds"]["scale"]["n_tensors"] == 4 * 8 * 3 + 1);
  CHECK(json["left_alone"].empty());
  CHECK(json["whole"] == true);
}

TEST_CASE("a directory that cannot be used at all is an error, not a report") {
  CHECK_THROWS_AS(inspect({.directory = "/nowhere/at/all"}), Error);
}

}  // namespace
}  // namespace kalibri::cli

// `kalibri bench` from outside: what it counts is what a run does, and its parts add up. Speeds are not judged.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

fixtures::RunResult bench(const fs::path& directory, std::vector<std::string> more) {
  more.insert(more.begin(), {"bench", directory});
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", more);
}

nlohmann::json measured(const fs::path& directory, std::vector<std::string> more) {
  more.emplace_back("--json");
  const fixtures::RunResult result = bench(directory, more);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  return nlohmann::json::parse(result.out);
}

double total(const nlohmann::json& stretch) {
  double seconds = 0;
  for (const auto& phase : stretch.at("phases_s")) seconds += phase.get<double>();
  return seconds;
}

}  // namespace

TEST_CASE("a bench counts the weights of one token, and its phases add up to the time") {
  const auto directory = fixtures::find_golden("kolibri1-k1");  // all bf16: 2 bytes a weight
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const nlohmann::json result = measured(*directory, {"-p", "40", "-n", "9", "--repeat", "2"});
  REQUIRE(result.at("requests").size() == 2);
  CHECK(result.at("peak_rss_bytes").get<std::int64_t>() > 0);

  // Of the routed experts top_k of all, of everything else each matrix once; neither norms, bias nor embedding.
  std::ifstream stream(*directory / "config.json");
  const nlohmann::json config = nlohmann::json::parse(stream);
  std::int64_t per_token = 0;
  for (const auto& [name, tensor] : fixtures::read_safetensors(*directory / "model.safetensors")) {
    if (tensor.shape.size() != 2 || name == "model.embed_tokens.weight") continue;
    if (name.find("mlp.experts.") != name.npos && name.find("mlp.experts.0.") == name.npos) continue;
    const bool is_routed = name.find("mlp.experts.0.") != name.npos;
    const std::int64_t times = is_routed ? config.at("num_experts_per_tok").get<std::int64_t>() : 1;
    per_token += times * static_cast<std::int64_t>(tensor.bytes.size());
  }
  for (const auto& request : result.at("requests")) {
    CHECK(request.at("reused") == 0);
    CHECK(request.at("prompt").at("tokens") == 40);
    CHECK(request.at("answer").at("tokens") == 8);
    CHECK(request.at("answer").at("weight_bytes").get<std::int64_t>() == 8 * per_token);
    CHECK(request.at("read_bytes_per_second").get<double>() > 0);
    for (const char* stretch : {"prompt", "answer"}) {
      const double seconds = request.at(stretch).at("seconds").get<double>();
      CHECK(std::abs(total(request.at(stretch)) - seconds) <= 0.05 * seconds);  // two clocks, a moment apart
    }
  }
}

TEST_CASE("a campaign's repeat goes on from what is held, and other prompts begin anew") {
  const auto directory = fixtures::find_golden("qwen4-exp-t2");
  if (!directory) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const nlohmann::json result = measured(*directory, {"-p", "40", "-n", "4", "--campaign"});
  std::vector<std::string> names;
  std::vector<std::int64_t> reused;
  for (const auto& request : result.at("requests")) {
    names.push_back(request.at("name").get<std::string>());
    reused.push_back(request.at("reused").get<std::int64_t>());
    CHECK(request.at("prompt").at("tokens").get<std::int64_t>() + reused.back() == 40);
  }
  CHECK(names == std::vector<std::string>{"cold", "repeat", "prompt 1", "prompt 2", "prompt 3", "prompt 4"});
  CHECK(reused == std::vector<std::int64_t>{0, 40, 0, 0, 0, 0});
}

TEST_CASE("a bench beyond the model's positions is refused, and text says what JSON does") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const fixtures::RunResult refused = bench(*directory, {"-p", "4096", "-n", "9"});
  CHECK(refused.exit_status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("max_position_embeddings"));
  const fixtures::RunResult text = bench(*directory, {"-p", "20", "-n", "3", "--repeat", "1"});
  CHECK(text.exit_status == 0);
  CHECK_THAT(text.out, ContainsSubstring("read-sum") && ContainsSubstring("experts"));
}

// `kalibri bench` from outside: what it counts is what a run does, and its parts add up. Speeds are not judged.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/mapped_file.hpp"
#include "engine/cli/page_cache.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
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
      CHECK(total(request.at(stretch)) == Approx(seconds));
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
  CHECK(result.at("load_s").get<double>() > 0);
  CHECK(result.at("page_cache").at("bytes") == fs::file_size(*directory / "model.safetensors"));
  CHECK_FALSE(result.contains("expert_cache"));
}

TEST_CASE("a bench's peak memory is the model's, without what the read-sum reads") {
  constexpr std::int64_t kRulerBytes = std::int64_t{256} << 20;
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const fixtures::RunResult result = bench(*directory, {"-p", "40", "-n", "4", "--repeat", "1", "--json"});
  REQUIRE(result.exit_status == 0);
  const auto told = nlohmann::json::parse(result.out).at("peak_rss_bytes").get<std::int64_t>();
  CHECK(told > 0);
  CHECK(told <= result.peak_rss_bytes - kRulerBytes);
}

TEST_CASE("a campaign drops the checkpoint from the page cache, and says what stayed there") {
  const auto golden = fixtures::find_golden("kolibri1-k1");
  if (!golden) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const fixtures::CheckpointCopy copy(*golden);
  const std::vector<std::string> campaign = {"-p", "8", "-n", "2", "--campaign"};
  const auto n_bytes = static_cast<std::int64_t>(fs::file_size(copy.weights()));
  const cli::PageCacheDrop free = cli::drop_from_page_cache({copy.weights()});
  CHECK(free.bytes == n_bytes);
  if (free.bytes_left == 0) CHECK(bench(copy.directory(), campaign).err == "");  // not so in memory

  const MappedFile held(copy.weights());
  unsigned sum = 0;
  for (const std::byte byte : held.bytes()) sum += std::to_integer<unsigned>(byte);
  CHECK(sum > 0);  // every page is mapped here
  CHECK(cli::drop_from_page_cache({copy.weights()}).bytes_left == n_bytes);
  const fixtures::RunResult result = bench(copy.directory(), campaign);
  CHECK(result.exit_status == 0);
  CHECK_THAT(result.err, ContainsSubstring("warning") && ContainsSubstring("stay in the page cache"));
  CHECK(measured(copy.directory(), campaign).at("page_cache").at("bytes_left") == n_bytes);
}

TEST_CASE("with an expert cache a bench counts what was read and waited for, as a part of the experts' time") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const nlohmann::json without = measured(*directory, {"-p", "12", "-n", "5", "--campaign"});
  const nlohmann::json result =
      measured(*directory, {"-p", "12", "-n", "5", "--campaign", "--expert-cache", "2", "--expert-reads", "buffered"});
  const nlohmann::json& cache = result.at("expert_cache");
  CHECK(cache.at("slots") == 2);
  CHECK(cache.at("reads") == "buffered");
  for (std::size_t i = 0; i < 6; ++i) {
    for (const char* stretch : {"prompt", "answer"}) {
      const nlohmann::json& is = result.at("requests")[i].at(stretch);
      const nlohmann::json& was = without.at("requests")[i].at(stretch);
      CHECK_FALSE(was.contains("experts"));
      CHECK(was.at("phases_s").at("expert_wait") == 0);
      CHECK(is.at("weight_bytes") == was.at("weight_bytes"));
      const nlohmann::json& experts = is.at("experts");
      const auto misses = experts.at("misses").get<std::int64_t>();
      if (is.at("tokens") == 0) {  // the repeat's prompt is held
        CHECK(misses + experts.at("hits").get<std::int64_t>() == 0);
        continue;
      }
      CHECK(misses > 0);  // a token takes more than two
      CHECK(experts.at("bytes_read").get<std::int64_t>() > 0);
      CHECK(experts.at("bytes_read").get<std::int64_t>() <= misses * cache.at("slot_bytes").get<std::int64_t>());
      CHECK(experts.at("wait_s") == is.at("phases_s").at("expert_wait"));
      const double seconds = is.at("seconds").get<double>();
      CHECK(total(is) == Approx(seconds));
    }
  }
}

TEST_CASE(
    "a bench counts what the disks read for it: all of the experts' bytes past the page cache, none from memory") {
  const auto golden = fixtures::find_golden("kolibri1-k1");
  if (!golden) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const fixtures::CheckpointCopy copy(*golden);
  const auto answers = [&](const std::string& reads) {
    std::pair<std::int64_t, std::int64_t> bytes;  // experts', the disks'
    const nlohmann::json result = measured(
        copy.directory(), {"-p", "4", "-n", "9", "--repeat", "1", "--expert-cache", "2", "--expert-reads", reads});
    const nlohmann::json& answer = result.at("requests")[0].at("answer");
    bytes.first = answer.at("experts").at("bytes_read");
    bytes.second = answer.value("disk_bytes", std::int64_t{-1});
    CHECK(bytes.first > 0);
    return bytes;
  };
  const auto warm = answers("buffered");  // by a request before
  if (warm.second < 0) KALIBRI_SKIP("the kernel does not count what it reads from disks");
  CHECK(warm.second < warm.first / 10);
  if (cli::drop_from_page_cache({copy.weights()}).bytes_left > 0) KALIBRI_SKIP("the file system lies in memory");
  if (bench(copy.directory(), {"--expert-cache", "2", "--expert-reads", "direct"}).exit_status != 0) {
    KALIBRI_SKIP("the file system has no direct reads");
  }
  const auto direct = answers("direct");
  if (direct.second == 0) KALIBRI_SKIP("the file system's reads are not counted");
  CHECK(direct.second >= direct.first);
  CHECK(direct.second < direct.first * 2);
}

TEST_CASE("a bench says where the weights lie, and they lie where it is told") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  for (const char* place : {"mapped", "memory"}) {
    const nlohmann::json weights =
        measured(*directory, {"-p", "4", "-n", "3", "--repeat", "1", "--weights", place}).at("weights");
    CHECK(weights.at("place") == place);
    CHECK((weights.at("read_bytes").get<std::int64_t>() > 0) == (weights.at("place") == "memory"));
    CHECK((weights.at("expert_bytes").get<std::int64_t>() > 0) == (weights.at("place") == "memory"));
  }
  const fixtures::RunResult refused = bench(*directory, {"--weights", "disk"});
  CHECK(refused.exit_status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("--weights: 'disk'") && ContainsSubstring("memory"));
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
  CHECK(text.out.find("hits") == std::string::npos);
  const fixtures::RunResult cached = bench(*directory, {"-p", "20", "-n", "3", "--repeat", "1", "--expert-cache", "3"});
  CHECK_THAT(cached.out, ContainsSubstring("misses") && ContainsSubstring("GB/s, waited"));
  CHECK_THAT(cached.err, ContainsSubstring("kalibri: expert cache: 3 of 16 experts"));
}

TEST_CASE("a bench ends with one row of Markdown under a head of as many columns") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const auto n_bars = [](const std::string& line) { return std::count(line.begin(), line.end(), '|'); };
  const std::vector<std::string> single = {"--repeat", "1"}, campaign = {"--campaign"},
                                 cached = {"--campaign", "--expert-cache", "2"};
  for (const auto& more : {single, campaign, cached}) {
    std::vector<std::string> arguments = {"-p", "8", "-n", "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::istringstream out(bench(*directory, arguments).out);
    std::vector<std::string> lines;
    for (std::string line; std::getline(out, line);) lines.push_back(line);
    REQUIRE(lines.size() > 3);
    const std::size_t row = lines.size() - 3;
    CHECK(lines[row].starts_with("| model | layers | precision |"));
    CHECK(lines[row + 1].starts_with("|---|"));
    CHECK(lines[row + 2].starts_with("| kolibri1 | 5 | "));
    for (std::size_t i = row; i < lines.size(); ++i) CHECK(n_bars(lines[i]) == n_bars(lines[row]));
    CHECK_THAT(lines[row + 2], ContainsSubstring(more == cached ? "| 2 of 16 |" : "| all |"));
    if (more == single) continue;
    REQUIRE(lines.size() == 1 + 8 + 1 + 3);  // and before it one of six requests
    for (std::size_t i = 1; i < 9; ++i) CHECK(n_bars(lines[i]) == (more == cached ? 11 : 7));
    CHECK_THAT(lines[4], ContainsSubstring("| repeat | 8 | 8 |") && ContainsSubstring("| - |"));  // no rate of nothing
  }
}

TEST_CASE("a bench refuses a cache that it cannot have with status 2") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  using Words = std::vector<std::string>;
  for (const Words& more : {Words{"--expert-cache", "0"}, Words{"--expert-reads", "direct"},
                            Words{"--expert-cache", "3", "--precision", "exact"}}) {
    const fixtures::RunResult refused = bench(*directory, more);
    CHECK(refused.exit_status == 2);
    CHECK_THAT(refused.err, ContainsSubstring("expert"));
  }
}

TEST_CASE("a bench that the system has no memory for is refused with status 2, and is no fault of ours") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  KALIBRI_SKIP("a sanitizer takes more address space than any limit leaves");
#endif
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const fixtures::RunResult refused = fixtures::run_program(
      "/bin/sh", {"-c", "ulimit -v 250000; exec \"$0\" \"$@\"", KALIBRI_BIN_DIR "/kalibri", "bench", *directory});
  INFO(refused.err);
  CHECK(refused.exit_status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("memory"));
}

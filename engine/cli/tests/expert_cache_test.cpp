// --expert-cache and --expert-reads, from outside: the same answers, numbers that add up, and refusals.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.hpp"
#include "engine/cli/expert_cache_flags.hpp"
#include "engine/cli/tests/speaking_checkpoint.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/run_program.hpp"

namespace kalibri::cli::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;
using Words = std::vector<std::string>;

fixtures::RunResult generate(const Words& words) {
  static const SpeakingCheckpoint checkpoint(fixtures::Family::kolibri1);
  Words arguments = {"generate", checkpoint.directory(), "-p", "Der Kolibri", "-n",
                     "12",       "--temperature",        "0",  "--ignore-eos"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return fixtures::run_program(std::filesystem::path(KALIBRI_BIN_DIR) / "kalibri", arguments, {});
}

TEST_CASE("flags become options, and what is none of them is refused with what is expected") {
  CHECK_FALSE(expert_cache({}).is_wanted());
  CHECK(expert_cache({"64", "auto"}).n_slots == 64);
  const runtime::ExpertCacheOptions options = expert_cache({"2G", "direct:threads"});
  CHECK(options.n_bytes == std::int64_t{2} << 30);
  CHECK(options.mode == runtime::ReadMode::direct);
  CHECK(options.engine == ReadEngine::threads);
  CHECK(expert_cache({"1", "auto:blocking"}).engine == ReadEngine::blocking);
  for (const char* size : {"0", "-3", "3 slots", "1e3", "x"}) {
    CHECK_THROWS_WITH(expert_cache({size, "auto"}), ContainsSubstring("--expert-cache") && ContainsSubstring("12G"));
  }
  for (const char* reads : {"", "fast", "direct:", "direct:uring:threads", ":uring"}) {
    CHECK_THROWS_WITH(expert_cache({"3", reads}), ContainsSubstring("--expert-reads") && ContainsSubstring("direct"));
  }
}

TEST_CASE("answers are the same with any cache, and the numbers of a request add up") {
  const json expected = json::parse(generate({"--json"}).out);
  CHECK_FALSE(expected.contains("expert_cache"));
  for (const Words& words : {Words{"--expert-cache", "1"}, Words{"--expert-cache", "3", "--expert-reads", "direct"},
                             Words{"--expert-cache", "1G", "--expert-reads", "buffered:threads", "--threads", "1"}}) {
    Words all = words;
    all.insert(all.end(), {"--json", "-p", "Der Kolibri"});  // the same prompt again
    const auto result = generate(all);
    INFO(result.err);
    REQUIRE(result.exit_status == 0);
    CHECK_THAT(result.err, ContainsSubstring("kalibri: expert cache: "));
    const json report = json::parse(result.out);
    const json& cache = report.at("expert_cache");
    const bool holds_all = cache.at("slots") == cache.at("experts");
    for (const std::size_t i : {0U, 1U}) {
      const json& answer = report.at("answers")[i];
      CHECK(answer.at("ids") == expected.at("answers")[0].at("ids"));
      const json& experts = answer.at("experts");
      const auto n_misses = experts.at("misses").get<std::int64_t>();
      CHECK(experts.at("hits").get<std::int64_t>() + n_misses > 0);
      CHECK(experts.at("bytes_read").get<std::int64_t>() >= n_misses);
      CHECK(experts.at("bytes_read").get<std::int64_t>() <= n_misses * cache.at("slot_bytes").get<std::int64_t>());
      if (holds_all && i == 1) CHECK(n_misses == 0);
      if (!holds_all || i == 0) CHECK(n_misses > 0);
    }
  }
}

TEST_CASE("answers are the same wherever the weights lie, and a line says where that is") {
  const json expected = json::parse(generate({"--json"}).out);
  for (const Words& words : {Words{"--weights", "mapped"}, Words{"--weights", "memory"},
                             Words{"--weights", "memory", "--expert-cache", "1"}}) {
    Words all = words;
    all.insert(all.end(), {"--json"});
    const auto result = generate(all);
    INFO(result.err);
    REQUIRE(result.exit_status == 0);
    CHECK_THAT(result.err,
               ContainsSubstring("kalibri: weights " + std::string(words[1] == "mapped" ? "" : "in ") + words[1]));
    CHECK(json::parse(result.out).at("answers")[0].at("ids") == expected.at("answers")[0].at("ids"));
    CHECK(json::parse(result.out).contains("expert_cache") == (words.size() > 2));
  }
  CHECK_THAT(generate({}).err, !ContainsSubstring("weights"));
}

TEST_CASE("the line of numbers has the experts', a cache below top-k warns, one of top-k does not") {
  const auto small = generate({"--expert-cache", "1", "--stats"});
  CHECK_THAT(small.err, ContainsSubstring("1 of 16 experts in each of 5 layers, 160.00 KiB; "));
  CHECK_THAT(small.err, ContainsSubstring("needs 3 experts in each layer, but the cache keeps 1:") &&
                            ContainsSubstring("; experts: ") && ContainsSubstring("misses") &&
                            ContainsSubstring("GB/s, waited"));
  const auto enough = generate({"--expert-cache", "100000", "--stats"});
  CHECK_THAT(enough.err, !ContainsSubstring("warning"));
  CHECK_THAT(generate({"--stats"}).err, !ContainsSubstring("experts"));
}

TEST_CASE("a cache beyond the memory that is available warns, and one within it does not") {
  const runtime::ExpertCacheInfo cache = {.n_layers = 2, .n_experts = 8, .n_slots = 4, .slot_bytes = 1024};
  CHECK(expert_cache_warnings(cache, 4, 8 * 1024) == "");
  CHECK(expert_cache_warnings(cache, 4, 0) == "");  // not known
  CHECK_THAT(expert_cache_warnings(cache, 4, 8 * 1024 - 1),
             ContainsSubstring("warning") && ContainsSubstring("8.00 KiB") && !ContainsSubstring("a token needs"));
  CHECK_THAT(expert_cache_warnings(cache, 5, 1), ContainsSubstring("a token needs 5") && ContainsSubstring("plan"));
}

TEST_CASE("what cannot be cached is refused with status 2") {
  for (const Words& words : {Words{"--expert-cache", "0"}, Words{"--expert-cache", ""}, Words{"--expert-cache", "1K"},
                             Words{"--expert-reads", "direct"}, Words{"--expert-cache", "3", "--expert-reads", "x"},
                             Words{"--expert-cache", "3", "--precision", "exact"}}) {
    const auto result = generate(words);
    INFO(result.err);
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring("expert"));
  }
}

}  // namespace
}  // namespace kalibri::cli::test

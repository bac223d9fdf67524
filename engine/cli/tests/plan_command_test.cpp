// `kalibri plan`: sizes as people write them, plans done by hand, and the command on the released shapes (headers in
// front of holes), where reading a hole's gigabytes would show in its memory.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cli/byte_size.hpp"
#include "engine/cli/plan.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using cli::parse_bytes;
using fixtures::RunResult;
using fixtures::TempDirectory;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

RunResult plan(const fs::path& directory, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"plan", directory.string()});
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", arguments, {});
}

json plan_json(const fs::path& directory, std::vector<std::string> arguments, int status = 0) {
  arguments.emplace_back("--json");
  const RunResult result = plan(directory, arguments);
  INFO(result.err);
  REQUIRE(result.exit_status == status);
  return json::parse(result.out);
}

/// Two layers of ten experts of 100 bytes, of which a token takes two.
model::Footprint small() {
  model::Footprint f;
  f.n_layers = 2;
  f.n_experts = 10;
  f.top_k = 2;
  f.context = 100;
  f.mapped_bytes = 1000;
  f.head_bytes = 280;
  f.state_bytes = 300;
  f.touched_bytes = 200;
  f.expert_bytes = f.stored_expert_bytes = f.slot_bytes = 100;
  f.n_always_weights = 500;
  f.n_expert_weights = 50;
  return f;
}

fs::path released_kolibri1(const TempDirectory& directory) {
  fixtures::Kolibri1Options options;
  options.sparse = true;
  options.n_shards = 32;
  fixtures::make_kolibri1(directory.path() / "kolibri1", fixtures::kolibri1_released(), options);
  return directory.path() / "kolibri1";
}

fs::path released_qwen4_exp(const TempDirectory& directory) {
  fixtures::Qwen4ExpOptions options;
  options.sparse = true;
  options.n_shards = 32;
  fixtures::make_qwen4_exp(directory.path() / "qwen4_exp", fixtures::qwen4_exp_released(), options);
  return directory.path() / "qwen4_exp";
}

}  // namespace

TEST_CASE("Memory is read as people write it, and nothing else is taken for it") {
  CHECK(parse_bytes("24G") == 24 * kGiB);
  CHECK(parse_bytes("24GiB") == 24 * kGiB);
  CHECK(parse_bytes("24GB") == 24'000'000'000);
  CHECK(parse_bytes("512M") == 512 << 20);
  CHECK(parse_bytes("1.5K") == 1536);
  CHECK(parse_bytes("65536") == 65536);
  CHECK(parse_bytes("17B") == 17);
  for (const char* text :
       {"",      "G",      "-1G",    "0", "0G",  "1e3", "24 G", " 24G",         "24g",
        "24Gi",  "24GiBs", "1.2.3G", ".", "nan", "inf", "0x10", "99999999999T", "9223372036854775808",
        "24G\n", "+1G"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_bytes(text).has_value());
  }
  CHECK(cli::bytes_text(3 * kGiB / 2) == "1.50 GiB");
  CHECK(cli::bytes_text(1023) == "1023 B");
}

TEST_CASE("A plan by hand: slots, what is missing, hits and rates") {
  const model::Footprint f = small();
  const cli::Plan none = cli::make_plan(f, 1, {});
  CHECK(none.fixed_bytes == 1000 + 3 * 300 + none.program_bytes);  // state and two copies
  CHECK(none.n_slots == 1);                                        // the least there can be
  CHECK(none.missing_bytes == none.fixed_bytes + 200 - 1);
  const cli::Plan some = cli::make_plan(f, none.fixed_bytes + 799, {});
  CHECK(some.n_slots == 3);
  CHECK(some.cache_bytes == 600);
  CHECK(some.missing_bytes == 0);
  CHECK(cli::make_plan(f, none.fixed_bytes + 800, {}).n_slots == 4);
  CHECK(cli::make_plan(f, none.fixed_bytes + 799, 4).missing_bytes == 1);
  CHECK(cli::make_plan(f, kGiB, {}).n_slots == 10);
  CHECK(cli::further_memory(f, some) == std::vector<std::int64_t>{none.fixed_bytes + 2000});

  const cli::Ceilings ceilings{.memory_bytes = 1600, .disk_bytes = 1000, .operations = 14000};
  const cli::Decode decode = cli::predict_decode(f, ceilings, 5);
  CHECK(decode.hit_rate == 0.5);
  CHECK(decode.disk_s == Approx(4 * 0.5 * 100 / 1000.0));              // of 2 x 2 experts one half
  CHECK(decode.memory_s == Approx((1000 + 4 * 100 + 200) / 1600.0));   // 1 s
  CHECK(decode.arithmetic_s == Approx(2 * (500 + 4 * 50) / 14000.0));  // 0.1 s
  CHECK(decode.bottleneck == cli::Bottleneck::memory);
  CHECK(decode.best_rate() == Approx(1.0));
  CHECK(decode.worst_rate() == Approx(1 / 1.2));
  CHECK(cli::predict_decode(f, {.memory_bytes = 1600, .disk_bytes = 100, .operations = 14000}, 5).bottleneck ==
        cli::Bottleneck::disk);
  CHECK(cli::predict_decode(f, {.memory_bytes = 1600, .disk_bytes = 1000, .operations = 100}, 5).bottleneck ==
        cli::Bottleneck::arithmetic);
  CHECK(cli::predict_decode(f, ceilings, 10).disk_s == 0);

  // Two tokens take 10 (1 - 0.8^2) = 3.6 different experts of each layer, half of which are there.
  const cli::Prefill prefill = cli::predict_prefill(f, ceilings, 5, 2);
  CHECK(prefill.disk_s == Approx(2 * 3.6 * 0.5 * 100 / 1000.0 / 2));
  CHECK(prefill.memory_s == Approx((1000 - 280 + 2 * 3.6 * 100) / 1600.0 / 2));  // 0.45 s; disk 0.18 s
  CHECK(prefill.bottleneck == cli::Bottleneck::memory);
  CHECK(prefill.best_rate() == Approx(1 / 0.45));
  CHECK(cli::predict_prefill(f, {.memory_bytes = 1600, .disk_bytes = 100, .operations = 14000}, 5, 2).bottleneck ==
        cli::Bottleneck::disk);
  CHECK(cli::predict_prefill(f, {.memory_bytes = 1600, .disk_bytes = 1000, .operations = 100}, 5, 2).bottleneck ==
        cli::Bottleneck::arithmetic);
}

TEST_CASE("The released Kolibri 1 in 24 GiB: what fits, what it costs, what more memory buys") {
  const TempDirectory directory;
  const fs::path released = released_kolibri1(directory);
  const json o = plan_json(released, {"--ram", "24G", "--threads", "2"});
  CHECK(o.at("fits") == true);
  CHECK(o.at("weights").at("all_expert_bytes") == 75515904000);
  CHECK(o.at("session").at("bytes_per_context_token") == 40960);
  const auto slots = o.at("expert_cache").at("slots").get<std::int64_t>();
  const auto row = o.at("expert_cache").at("bytes_per_slot_in_each_layer").get<std::int64_t>();
  const auto needed = o.at("needed_bytes").get<std::int64_t>();
  CHECK(needed + slots * row <= 24 * kGiB);
  CHECK(needed + (slots + 1) * row > 24 * kGiB);
  CHECK(slots > 90);
  CHECK(slots < 110);
  const json& offers = o.at("offers");
  CHECK(offers.front().at("decode").at("bottleneck") == "disk");
  CHECK(offers.back().at("slots") == 384);
  CHECK(offers.back().at("hit_rate") == 1.0);
  CHECK(offers.back().at("decode").at("bottleneck") == "memory");
  for (std::size_t i = 1; i < offers.size(); ++i) {
    CHECK(offers[i].at("slots") > offers[i - 1].at("slots"));
    CHECK(offers[i].at("decode").at("tokens_per_second") > offers[i - 1].at("decode").at("tokens_per_second"));
  }
  CHECK(o.at("ceilings").at("measured") == false);

  // More context leaves less for experts; a cache that is asked for is taken.
  CHECK(plan_json(released, {"--ram", "24G", "--context", "65536"}).at("expert_cache").at("slots") < slots);
  CHECK(plan_json(released, {"--ram", "24G", "--expert-cache", "32"}).at("expert_cache").at("slots") == 32);
  CHECK(plan_json(released, {"--ram", "24G", "--expert-cache", "1G"}).at("expert_cache").at("slots") == kGiB / row);
  const json made = plan_json(released, {"--ram", "24G", "--precision", "mixed-4-8"});
  CHECK(made.at("expert_cache").at("is_possible") == false);
  CHECK(made.at("offers").size() == 1);  // more memory buys nothing

  // A token at a time passes all weights but the head, as in decoding: a prompt is not read at the rate of a chunk.
  const json one = plan_json(released, {"--ram", "100G", "--chunk", "1"}).at("offers").front();
  CHECK(one.at("prefill").at("bottleneck") == "memory");
  CHECK(one.at("prefill").at("tokens_per_second") < 1.5 * one.at("decode").at("tokens_per_second").get<double>());

  const RunResult text = plan(released, {"--ram", "24G"});
  CHECK(text.exit_status == 0);
  CHECK_THAT(text.out, ContainsSubstring("assumed"));
  CHECK_THAT(text.out, ContainsSubstring("--expert-cache " + std::to_string(slots)));
  CHECK(text.peak_rss_bytes < 512 << 20);  // of 79 GB
}

TEST_CASE("The released qwen4_exp: its n-gram table takes no memory") {
  const TempDirectory directory;
  const fs::path released = released_qwen4_exp(directory);
  const json o = plan_json(released, {"--ram", "24G", "--threads", "2"});
  CHECK(o.at("weights").at("ngram_table_bytes") > 51'000'000'000);
  CHECK(o.at("needed_bytes") < 12 * kGiB);
  CHECK(o.at("expert_cache").at("slots") > 45);
  CHECK(o.at("expert_cache").at("slots") < 64);
  CHECK_THAT(plan(released, {"--ram", "24G"}).out, ContainsSubstring("n-gram table of 51.2 GB"));
}

TEST_CASE("What does not fit is said, with what is missing") {
  const TempDirectory directory;
  const fs::path released = released_kolibri1(directory);
  const RunResult result = plan(released, {"--ram", "2G"});
  CHECK(result.exit_status == 1);
  CHECK_THAT(result.out, ContainsSubstring("Does not fit"));
  const json o = plan_json(released, {"--ram", "2G"}, 1);
  CHECK(o.at("fits") == false);
  const auto missing = o.at("missing_bytes").get<std::int64_t>();
  CHECK(missing ==
        o.at("needed_bytes").get<std::int64_t>() + o.at("expert_cache").at("bytes").get<std::int64_t>() - 2 * kGiB);
  CHECK(plan_json(released, {"--ram", std::to_string(2 * kGiB + missing)}).at("fits") == true);
  CHECK(plan_json(released, {"--ram", std::to_string(2 * kGiB + missing - 1)}, 1).at("missing_bytes") == 1);
  CHECK(plan(released, {"--ram", "24G", "--expert-cache", "384"}).exit_status == 1);
}

TEST_CASE("Texts that are no memory, context or cache are refused with status 2, and say what is expected") {
  const auto golden = fixtures::find_golden("kolibri1-k1-fp8");
  if (!golden) KALIBRI_SKIP("no golden data");
  for (const char* ram : {"", "lots", "-1", "0", "24 G", "1e9", "99999999999999999999"}) {
    CAPTURE(ram);
    const RunResult result = plan(*golden, {"--ram", ram});
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring("--ram"));
  }
  for (const char* context : {"0", "-1", "many", "99999999999", "99999999999999999999999"}) {
    CAPTURE(context);
    const RunResult result = plan(*golden, {"--ram", "1G", "--context", context});
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring("context"));
  }
  for (const char* cache : {"0", "-3", "some", "1.5", "17B"}) {
    CAPTURE(cache);
    const RunResult result = plan(*golden, {"--ram", "1G", "--expert-cache", cache});
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring("--expert-cache"));
  }
  CHECK(plan(*golden, {}).exit_status == 2);
  CHECK(plan(*golden, {"--ram", "1G", "--precision", "f33"}).exit_status == 2);
  CHECK(plan(*golden / "nothing", {"--ram", "1G"}).exit_status == 2);
}

TEST_CASE("Small models of every layout are planned, and an incomplete one is refused") {
  for (const char* set : {"kolibri1-k1", "kolibri1-k2-fp8", "qwen4-exp-t1-fp8", "qwen4-exp-t2"}) {
    CAPTURE(set);
    const auto golden = fixtures::find_golden(set);
    if (!golden) KALIBRI_SKIP("no golden data");
    for (const char* precision : {"native", "exact", "bf16", "mixed-4-8"}) {
      const json o = plan_json(*golden, {"--ram", "4G", "--precision", precision});
      CHECK(o.at("fits") == true);
      CHECK(o.at("weights").at("resident_bytes") > 0);
    }
  }
  for (const char* mlx : {"mlx-affine/kolibri1-k1-mlx-4bit", "mlx-affine/kolibri1-k1-mlx-mixed"}) {
    const auto golden = fixtures::find_golden(mlx);
    if (!golden) KALIBRI_SKIP("no golden data");
    CHECK(plan_json(*golden, {"--ram", "1G"}).at("fits") == true);
  }
  for (const char* family : {"kolibri1", "qwen4_exp"}) {
    CHECK(plan_json(fs::path(KALIBRI_SOURCE_DIR) / "fixtures/nano" / family, {"--ram", "1G"}).at("fits") == true);
  }
}

TEST_CASE("Measured ceilings are measured") {
  const auto nano = fs::path(KALIBRI_SOURCE_DIR) / "fixtures/nano/kolibri1";
  const json o = plan_json(nano, {"--ram", "1G", "--measure"});
  CHECK(o.at("ceilings").at("measured") == true);
  CHECK(o.at("ceilings").at("memory_bytes_per_second") > 1e9);
  CHECK(o.at("ceilings").at("disk_bytes_per_second") > 1e6);
  CHECK(o.at("ceilings").at("operations_per_second") > 1e9);
  CHECK(o.at("ceilings").at("memory_bytes_per_second") != cli::Ceilings{}.memory_bytes);
}

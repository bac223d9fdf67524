// verify, compare and report as a person meets them: what stands in the folder, that every report follows the schema,
// the exit statuses, and what is refused. The reference's dumps are made by the engine itself: here only the commands
// matter.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/cli/report_directory.hpp"
#include "engine/cli/seeded_prompts.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reports/report.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;
using fixtures::TempDirectory;
using nlohmann::json;

namespace {

RunResult kalibri_program(const std::vector<std::string>& arguments) {
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", arguments);
}

/// A checkpoint, prompts, and the engine's own chained dump of them.
struct Scene {
  TempDirectory scratch;
  std::string checkpoint, tokens, chained;

  [[nodiscard]] std::string path(const std::string& name) const { return scratch.path() / name; }
  [[nodiscard]] RunResult dump(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"dump", checkpoint, "--tokens", tokens, "-o", path(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return kalibri_program(arguments);
  }
};

bool set_scene(Scene& scene) {
  const auto golden = fixtures::find_golden("kolibri1-k1-fp8");
  if (!golden) return false;
  scene.checkpoint = *golden;
  scene.tokens = scene.path("tokens.json");
  fixtures::write_file(scene.tokens, R"({"a": [1, 5, 9, 200, 7, 7, 3, 2, 90, 41, 8, 6], "b": [3]})");
  scene.chained = scene.path("chained.h5");
  return scene.dump("chained.h5", {"--precision", "exact"}).exit_status == 0;
}

json only_finding(const json& report, const std::string& id) {
  for (const json& finding : report.at("findings")) {
    if (finding.at("id") == id) return finding;
  }
  FAIL("no finding " << id);
  return {};
}

}  // namespace

TEST_CASE(
    "compare judges each mode, its report follows the schema, and without floors nothing is trusted but equal bits") {
  Scene scene;
  if (!set_scene(scene)) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  REQUIRE(scene.dump("native.h5", {"--precision", "native"}).exit_status == 0);
  REQUIRE(scene.dump("forced.h5", {"--mode", "teacher-forced", "--inputs", scene.chained}).exit_status == 0);
  REQUIRE(scene.dump("decoded.h5", {"--mode", "decode", "--precision", "exact"}).exit_status == 0);
  REQUIRE(scene.dump("decoded-native.h5", {"--mode", "decode", "--precision", "native"}).exit_status == 0);
  const auto compare = [&](const char* candidate, int exit_status, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"compare", scene.chained, scene.path(candidate), "--json",
                                          scene.path("report.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult run = kalibri_program(arguments);
    INFO(candidate << run.out << run.err);
    CHECK(run.exit_status == exit_status);
    return reports::read_report(scene.path("report.json"));  // throws when it does not follow the schema
  };
  CHECK(compare("native.h5", 1).at("verdict").at("status") == "mistrusted");
  CHECK(compare("native.h5", 1).at("comparisons").at("chained").at("rows").size() == 10);
  CHECK(compare("forced.h5", 1).at("comparisons").at("teacher_forced").at("logits").size() == 2);
  CHECK(compare("decoded.h5", 0).at("comparisons").at("decode").at("rows").size() == 2);
  CHECK(only_finding(compare("decoded-native.h5", 1), "decode/all").at("status") == "mistrusted");
  // The comparison itself is no floor: it is not of one program's fp32 against its own fp64.
  const json own_floor = compare("native.h5", 1, {"--reference64", scene.path("native.h5")});
  CHECK(only_finding(own_floor, "floor-chained/origin").at("status") == "mistrusted");
  CHECK_THAT(own_floor.at("verdict").at("text").get<std::string>(), ContainsSubstring("1 mistrusted, 18 held"));
  for (const char* second : {"native.h5", "decoded.h5"}) {  // one of the same mode, one of no floor's
    const RunResult refused = kalibri_program({"compare", scene.chained, scene.path("native.h5"), "--reference64",
                                               scene.path("native.h5"), "--reference64", scene.path(second)});
    CHECK(refused.exit_status == 2);
    CHECK_THAT(refused.err, ContainsSubstring(std::string(second) + ": mode") &&
                                ContainsSubstring("--reference64 takes one chained and one teacher-forced dump"));
  }
  CHECK(compare("chained.h5", 1).at("findings").at(0).at("text").get<std::string>().find("one and the same file") !=
        std::string::npos);
  const RunResult on_screen = kalibri_program({"compare", scene.chained, scene.path("native.h5"), "--window", "7"});
  CHECK_THAT(on_screen.out, ContainsSubstring("[4, 7)") && ContainsSubstring("Verdict: mistrusted"));
  fixtures::write_file(scene.path("foreign.h5"), "not HDF5");
  const RunResult foreign = kalibri_program({"compare", scene.chained, scene.path("foreign.h5")});
  CHECK(foreign.exit_status == 2);
  CHECK_THAT(foreign.err, ContainsSubstring("foreign.h5"));
}

TEST_CASE("report renders what verify wrote in every form, and refuses what is no report with status 2") {
  Scene scene;
  if (!set_scene(scene)) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const std::string out = scene.path("out");
  const RunResult verify =
      kalibri_program({"verify", scene.checkpoint, "--reference", scene.chained, "--out", out, "--taps", "q,moe_out"});
  INFO(verify.err);
  REQUIRE(verify.exit_status == 1);  // no floors: mistrusted
  const std::string file = out + "/report.json";
  const json report = reports::read_report(file);
  CHECK(report.at("options").at("prompt_source") == "--reference");
  CHECK(report.at("comparisons").at("decode").at("rows").size() == 7);  // tail needs two tokens
  const auto printed = [&](const std::vector<std::string>& form) {
    std::vector<std::string> arguments = {"report", file};
    arguments.insert(arguments.end(), form.begin(), form.end());
    const RunResult run = kalibri_program(arguments);
    CHECK(run.exit_status == 0);
    return run.out;
  };
  CHECK(printed({"--html"}) == fixtures::read_file(out + "/report.html"));
  CHECK(printed({"--markdown"}) == fixtures::read_file(out + "/report.md"));
  CHECK(printed({"--junit"}) == fixtures::read_file(out + "/junit.xml"));
  CHECK(verify.out.starts_with(printed({})));
  CHECK_THAT(verify.out, ContainsSubstring("Report: " + out + "/report.html"));
  std::istringstream lines(verify.out);
  for (std::string line; std::getline(lines, line) && !line.starts_with("Report: ");) CHECK(line.size() <= 100);
  fixtures::write_file(scene.path("broken.json"), "{}");
  const RunResult broken = kalibri_program({"report", scene.path("broken.json")});
  CHECK(broken.exit_status == 2);
  CHECK_THAT(broken.err, ContainsSubstring("broken.json: is not a Kalibri report"));
}

TEST_CASE("verify with --layers compares those layers alone") {
  Scene scene;
  if (!set_scene(scene)) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const auto verify = [&](const char* layers) {
    const std::string out = scene.path(std::string("out-") + layers);
    const RunResult run =
        kalibri_program({"verify", scene.checkpoint, "--reference", scene.chained, "--out", out, "--layers", layers});
    INFO(layers << run.err);
    REQUIRE(run.exit_status == 1);  // no floors
    return reports::read_report(out + "/report.json");
  };
  const json late = verify("2-4");
  CHECK(late.at("comparisons").at("teacher_forced").at("rows").size() == 6);
  CHECK_FALSE(late.at("comparisons").contains("chained"));
  const json early = verify("0-1");
  CHECK(early.at("comparisons").at("chained").at("rows").size() == 4);
  CHECK_FALSE(early.at("comparisons").contains("decode"));
  const RunResult beyond = kalibri_program({"verify", scene.checkpoint, "--out", scene.path("x"), "--layers", "3-5"});
  CHECK(beyond.exit_status == 2);
  CHECK_THAT(beyond.err, ContainsSubstring("0 <= a <= b <= 4"));
}

TEST_CASE("A verification takes over its own folder, without the old verdict, and nobody else's") {
  const TempDirectory scratch;
  const auto ours = scratch.path() / "ours";
  static_cast<void>(cli::open_report_directory(ours));
  for (const char* name : {"report.json", "engine.h5", "engine.h5.partial"}) fixtures::write_file(ours / name, "old");
  fixtures::write_file(ours / "notes.txt", "kept");
  static_cast<void>(cli::open_report_directory(ours));
  CHECK_FALSE(std::filesystem::exists(ours / "report.json"));
  CHECK_FALSE(std::filesystem::exists(ours / "engine.h5.partial"));
  CHECK(fixtures::read_file(ours / "notes.txt") == "kept");
  const auto foreign = scratch.path() / "foreign";
  std::filesystem::create_directory(foreign);
  fixtures::write_file(foreign / "report.json", "somebody's");
  REQUIRE_THROWS_WITH(cli::open_report_directory(foreign), ContainsSubstring("foreign: holds files of something else"));
  CHECK(fixtures::read_file(foreign / "report.json") == "somebody's");
  REQUIRE_THROWS_WITH(cli::open_report_directory(foreign / "report.json"), ContainsSubstring("is a file"));
}

TEST_CASE("Seeded prompts have the stated lengths once each, and the same ids everywhere") {
  model::ModelInfo info;
  info.vocab_size = 1000;
  info.window = 13;
  info.max_positions = 30;
  const auto prompts = cli::seeded_prompts(info);
  REQUIRE(prompts.size() == 3);
  CHECK(prompts[0].name == "seeded-1");
  // SplitMix64 seeded with 1: first output 0x910a2dec89025cc1, its high half times 1000 / 2^32
  CHECK(prompts[0].tokens == std::vector<std::int32_t>{566});
  CHECK(prompts[1].tokens.size() == 13);
  CHECK(prompts[2].tokens.size() == 30);  // 31 would be longer than the model has positions
  info.max_positions = 100;
  CHECK(cli::seeded_prompts(info).back().tokens.size() == 31);
  info.chooses_from = 40;
  CHECK(cli::seeded_prompts(info).back().tokens.size() == 40);
  CHECK(cli::token_file_text({prompts[0]}) == "{\"seeded-1\":[566]}\n");
}

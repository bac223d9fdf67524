// `kalibri tables` on small checkpoints: what the tables hold, what an earlier run leaves to the next, and what is said
// of a variant that cannot run.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "reports/accuracy_tables.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

/// A small checkpoint, two prompts (one longer than the window of 7) and a folder for the tables.
struct Scene {
  Scene() {
    fixtures::make_kolibri1(checkpoint, fixtures::kolibri1_tiny(), {});
    write_tokens(20);
  }

  void write_tokens(std::int64_t n) const {
    const test::Tokens prompts = {{"long", test::random_ids(n, 90)}, {"one", {3}}};
    fixtures::write_file(tokens, json(prompts).dump());
  }

  [[nodiscard]] RunResult run(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"tables", checkpoint, "--tokens", tokens, "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::kalibri_program(arguments);
  }

  [[nodiscard]] json tables() const { return json::parse(fixtures::read_file(out / "tables.json")); }

  [[nodiscard]] std::vector<std::string> dumps() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() == ".h5") names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  fixtures::TempDirectory folder;
  fs::path checkpoint = folder.path() / "check point";
  fs::path tokens = folder.path() / "prompts.json";
  fs::path out = folder.path() / "out";
};

std::vector<std::string> names(const json& tables) {
  std::vector<std::string> result;
  for (const json& variant : tables.at("variants")) result.push_back(variant.at("name"));
  return result;
}

}  // namespace

TEST_CASE("tables of a small checkpoint follow the schema and stand in the folder, while dumps of variants do not") {
  const Scene scene;
  const RunResult run = scene.run({"--variants", "4bit,fp32"});
  INFO(run.out << run.err);
  REQUIRE(run.exit_status == 0);
  const json tables = scene.tables();
  CHECK(reports::tables_error(tables).empty());
  CHECK(names(tables) == std::vector<std::string>{"fp32", "4bit"});
  for (const json& variant : tables.at("variants")) {
    CHECK(variant.at("status") == "measured");
    CHECK(variant.at("teacher_forced").at("n_pairs") == 5 * 21);
    for (const json& row : variant.at("decode")) CHECK(row.at("max_abs_logit") == 0);  // one engine's bits
    const json& bands = variant.at("bands").at(0).at("bands");
    CHECK(bands.at(0).at("decode_kl_mean") == bands.at(0).at("kl_mean"));
  }
  const auto kl = [&](std::size_t i) { return tables.at("variants").at(i).at("kl_mean").get<double>(); };
  CHECK(kl(0) < 1e-9);
  CHECK(kl(1) > 1e3 * kl(0));
  CHECK(scene.dumps() == std::vector<std::string>{"reference.h5"});
  CHECK_THAT(run.out, ContainsSubstring("4bit: end to end"));
  CHECK_THAT(fixtures::read_file(scene.out / "tables.md"), ContainsSubstring("## fp32: position bands"));
}

TEST_CASE("what an earlier run measured is taken when nothing has changed, and joins what is asked for now") {
  const Scene scene;
  REQUIRE(scene.run({"--variants", "fp32"}).exit_status == 0);
  const json first = scene.tables();
  REQUIRE(scene.run({"--variants", "bf16,fp32"}).exit_status == 0);
  const json second = scene.tables();
  CHECK(names(second) == std::vector<std::string>{"fp32", "bf16"});
  CHECK(second.at("reference") == first.at("reference"));  // seconds and all
  CHECK(second.at("variants").at(0) == first.at("variants").at(0));
  REQUIRE(scene.run({"--variants", "fp32", "--fresh"}).exit_status == 0);
  CHECK(names(scene.tables()) == std::vector<std::string>{"fp32"});
  CHECK(scene.tables().at("reference").at("sha256") != first.at("reference").at("sha256"));
}

TEST_CASE("what an earlier run measured of other prompts or another reference is not taken") {
  const Scene scene;
  REQUIRE(scene.run({"--variants", "fp32", "--keep-dumps"}).exit_status == 0);
  const json first = scene.tables();
  SECTION("prompts") { scene.write_tokens(19); }
  SECTION("reference") { fs::remove(scene.out / "reference.h5"); }
  REQUIRE(scene.run({"--variants", "bf16"}).exit_status == 0);
  CHECK(names(scene.tables()) == std::vector<std::string>{"bf16"});
  CHECK(scene.tables().at("reference") != first.at("reference"));
}

TEST_CASE("another checkpoint's tables are not written over") {
  const Scene scene;
  REQUIRE(scene.run({"--variants", "fp32"}).exit_status == 0);
  const std::string before = fixtures::read_file(scene.out / "tables.json");
  fs::remove_all(scene.checkpoint);
  fixtures::make_kolibri1(scene.checkpoint, fixtures::kolibri1_tiny(), {.seed = 2});
  for (const char* flag : {"--keep-dumps", "--fresh"}) {
    const RunResult run = scene.run({"--variants", "fp32", flag});
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring("tables.json: the tables of another checkpoint") &&
                            ContainsSubstring(json::parse(before).at("checkpoint").at("fingerprint")));
    CHECK(fixtures::read_file(scene.out / "tables.json") == before);
  }
  fs::remove_all(scene.out);
  CHECK(scene.run({"--variants", "fp32"}).exit_status == 0);
}

TEST_CASE("a checkpoint that is quantised already is refused, whichever variants are asked for") {
  const Scene scene;
  const fs::path packed = scene.folder.path() / "packed";
  REQUIRE(test::kalibri_program({"convert", scene.checkpoint, packed, "--group-size", "32"}).exit_status == 0);
  const RunResult run =
      test::kalibri_program({"tables", packed, "--tokens", scene.tokens, "--out", scene.out, "--variants", "fp32"});
  CHECK(run.exit_status == 2);
  CHECK_THAT(run.err, ContainsSubstring("packed codes (U32)") && ContainsSubstring(".safetensors") &&
                          ContainsSubstring("that this one was converted from"));
  CHECK_FALSE(fs::exists(scene.out));
}

TEST_CASE("tables with an expert cache are the same, and it is said where a variant goes without") {
  const Scene scene;
  fs::remove_all(scene.checkpoint);
  fixtures::make_kolibri1(scene.checkpoint, fixtures::kolibri1_tiny(), {.fp8 = false});
  REQUIRE(scene.run({"--variants", "bf16,4bit"}).exit_status == 0);
  const json without = scene.tables();
  const RunResult run = scene.run({"--variants", "bf16,4bit", "--fresh", "--expert-cache", "3"});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  CHECK_THAT(run.err, ContainsSubstring("kalibri: expert cache: 3 of") &&
                          ContainsSubstring("kalibri: 4bit: without --expert-cache"));
  CHECK(run.err.find("bf16: without") == std::string::npos);
  CHECK(scene.tables().at("options").at("expert_cache") == "3");
  for (const std::size_t i : {0U, 1U}) {
    json is = scene.tables().at("variants").at(i);
    is["wall_s"] = without.at("variants").at(i).at("wall_s");
    CHECK(is == without.at("variants").at(i));
  }
  CHECK(scene.run({"--variants", "bf16", "--expert-cache", "0"}).exit_status == 2);
}

TEST_CASE("a dump of an earlier run is taken, and one that was cut short is not") {
  const Scene scene;
  REQUIRE(scene.run({"--variants", "bf16", "--keep-dumps"}).exit_status == 0);
  const std::vector<std::string> all = {"bf16-chained.h5", "bf16-decode.h5", "bf16-teacher-forced.h5", "reference.h5"};
  REQUIRE(scene.dumps() == all);
  json tables = scene.tables();
  const json measured = tables.at("variants").at(0);
  tables["variants"] = json::array();  // as if the run had ended before it measured them
  fixtures::write_file(scene.out / "tables.json", tables.dump());
  fs::resize_file(scene.out / "bf16-decode.h5", fs::file_size(scene.out / "bf16-decode.h5") / 2);
  REQUIRE(scene.run({"--variants", "bf16"}).exit_status == 0);
  json again = scene.tables().at("variants").at(0);
  CHECK(again.at("wall_s").at("chained") == measured.at("wall_s").at("chained"));
  CHECK(again.at("wall_s").at("teacher-forced") == measured.at("wall_s").at("teacher-forced"));
  CHECK(again.at("wall_s").at("decode") != measured.at("wall_s").at("decode"));
  again["wall_s"] = measured.at("wall_s");
  CHECK(again == measured);
  CHECK(scene.dumps() == std::vector<std::string>{"reference.h5"});
}

TEST_CASE("a variant whose dump cannot be written is not run, the others are, and the exit status is 0") {
  const Scene scene;
  REQUIRE(scene.run({"--variants", "fp32"}).exit_status == 0);
  fs::create_directory(scene.out / "bf16-chained.h5");
  const RunResult run = scene.run({"--variants", "bf16,8bit"});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  const json tables = scene.tables();
  CHECK(reports::tables_error(tables).empty());
  CHECK(tables.at("variants").at(1).at("status") == "not_run");
  CHECK_THAT(tables.at("variants").at(1).at("reason").get<std::string>(), ContainsSubstring("bf16-chained.h5"));
  CHECK(tables.at("variants").at(2).at("status") == "measured");
  CHECK_THAT(run.out, ContainsSubstring("bf16: not run: "));
}

TEST_CASE("tables with a given reference's dump do not run the program") {
  const Scene scene;
  const fs::path reference = scene.folder.path() / "r.h5";
  REQUIRE(test::run_side(test::Side::reference, scene.checkpoint, {{"given", test::random_ids(9, 90)}}, reference)
              .exit_status == 0);
  const RunResult run = test::kalibri_program({"tables", scene.checkpoint, "--reference", reference, "--out", scene.out,
                                               "--variants", "fp32", "--reference-program", "/nowhere", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  const json tables = json::parse(run.out);
  CHECK(reports::tables_error(tables).empty());
  CHECK(tables.at("prompts").at(0).at("name") == "given");
  CHECK(tables.at("reference").at("program_sha256").is_null());
  CHECK(tables == scene.tables());
  CHECK(scene.dumps().empty());
}

TEST_CASE("tables of the other family have no published figures beside them") {
  const fixtures::TempDirectory folder;
  fixtures::make_qwen4_exp(folder.path() / "model", fixtures::qwen4_exp_tiny(), {});
  const RunResult run = test::kalibri_program(
      {"tables", folder.path() / "model", "--variants", "fp32,mixed", "--out", folder.path() / "out", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  const json tables = json::parse(run.out);
  CHECK(reports::tables_error(tables).empty());
  CHECK(tables.at("published").is_null());
  for (const json& variant : tables.at("variants")) {
    CHECK(variant.at("status") == "measured");
    for (const json& row : variant.at("decode")) CHECK(row.at("max_abs_logit") == 0);
  }
}

TEST_CASE("tables refuses what it cannot use with status 2") {
  const Scene scene;
  const RunResult unknown = scene.run({"--variants", "fp32,5bit"});
  CHECK(unknown.exit_status == 2);
  CHECK_THAT(unknown.err, ContainsSubstring("'5bit' is not known; use fp32, bf16, 8bit, 4bit, 4bit-g32, mixed"));
  fs::create_directories(scene.out);
  fixtures::write_file(scene.out / "letter.txt", "mine");
  const RunResult foreign = scene.run();
  CHECK(foreign.exit_status == 2);
  CHECK_THAT(foreign.err, ContainsSubstring("holds files of something else"));
  const RunResult failing = test::kalibri_program({"tables", scene.checkpoint, "--tokens", scene.tokens, "--out",
                                                   scene.folder.path() / "other", "--reference-program", "/bin/false"});
  CHECK(failing.exit_status == 2);
}

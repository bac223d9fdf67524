// `kalibri verify` end to end on the golden sets: the engine holds in both precisions, with the reference run by itself
// and with its dumps given; one changed bit in the checkpoint that only the engine reads does not.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/shard.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::RunResult;
using nlohmann::json;

namespace {

RunResult kalibri_program(const std::vector<std::string>& arguments) {
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", arguments);
}

json report_of(const std::filesystem::path& directory) {
  return json::parse(fixtures::read_file(directory / "report.json"));
}

}  // namespace

TEST_CASE("verify holds on each golden set of Kolibri 1, in both precisions") {
  const fixtures::TempDirectory scratch;
  for (const std::string set :
       {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8", "kolibri1-k2-sharded",
        "mlx-affine/kolibri1-k1-mlx-4bit", "mlx-affine/kolibri1-k1-mlx-mixed"}) {
    const auto golden = fixtures::find_golden(set == "kolibri1-k2-sharded" ? "kolibri1-k2" : set);
    const auto out_name = std::filesystem::path(set).filename().string() + "-";
    if (!golden.has_value()) KALIBRI_SKIP("golden set " + set + " is not there");
    std::filesystem::path directory = *golden;
    if (set == "kolibri1-k2-sharded") {
      directory = scratch.path() / set;
      fixtures::shard_checkpoint(*golden, directory, 2);
    }
    for (const char* precision : {"exact", "native"}) {
      const auto out = scratch.path() / (out_name + precision);
      const RunResult run = kalibri_program({"verify", directory, "--out", out, "--precision", precision});
      INFO(set << ", " << precision << "\n" << run.out << run.err);
      CHECK(run.exit_status == 0);
      CHECK_THAT(run.out, ContainsSubstring("Verdict: held"));
      const json report = report_of(out);
      CHECK(report.at("options").at("precision") == precision);
      CHECK(report.at("findings").size() > 20);
      for (const json& finding : report.at("findings")) CHECK(finding.at("status") != "fell_short");
      for (const char* file : {"report.md", "report.html", "junit.xml"})
        CHECK(std::filesystem::file_size(out / file) > 1000);
    }
  }
}

TEST_CASE("verify judges a precision by the reference in the same precision, or in that which is asked for") {
  const fixtures::TempDirectory scratch;
  const auto out = scratch.path() / "out";
  const auto verify = [&](const std::string& set, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"verify", *fixtures::find_golden(set), "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return kalibri_program(arguments);
  };
  const auto status_of = [&](const std::string& id) -> std::string {
    const json report = report_of(out);
    for (const json& finding : report.at("findings")) {
      if (finding.at("id") == id) return finding.at("status");
    }
    return "missing";
  };
  for (const std::string set : {"kolibri1-k1-fp8", "qwen4-exp-t1-fp8"}) {
    if (!fixtures::find_golden(set)) KALIBRI_SKIP("golden set " + set + " is not there");
    for (const std::string precision :
         {"bf16", "production", "residual=bf16", "residual=bf16-fused,kv=bf16", "mixed-4-8",
          "dense=affine:8:32,experts=affine:4:32,activations=int16", "dense=affine:8:32,activations=int8"}) {
      const RunResult run = verify(set, {"--precision", precision});
      INFO(set << ", " << precision << "\n" << run.out << run.err);
      CHECK(run.exit_status == 0);
      CHECK(report_of(out).at("options").at("reference_precision") == precision);
      for (const char* id : {"teacher-forced/typical", "teacher-forced/rounding", "chained/rounding"})
        CHECK(status_of(id) == "held");
    }
  }
  // What is rounded otherwise than in the reference, or not at all, and what quantising loses, is far above any floor;
  // a quantised embedding needs more bits than the checkpoint's bf16.
  const std::string set = "kolibri1-k1-fp8";
  const std::map<std::string, std::string> others = {
      {"native", "bf16"}, {"bf16", "production"}, {"residual=bf16", "native"}, {"mixed-4-8", "exact"}};
  for (const auto& [precision, reference_precision] : others) {
    const RunResult run = verify(set, {"--precision", precision, "--reference-precision", reference_precision});
    INFO(precision << " against " << reference_precision << "\n" << run.out << run.err);
    CHECK(run.exit_status == 1);
    CHECK(report_of(out).at("options").at("reference_precision") == reference_precision);
    CHECK(status_of("teacher-forced/typical") == "fell_short");
    CHECK(status_of("teacher-forced/rounding") == "fell_short");
  }
  CHECK(verify(set, {"--reference-precision", "fp16"}).exit_status == 2);
  CHECK(verify(set, {"--reference-precision", "exact", "--reference", out / "reference.h5"}).exit_status == 2);
}

TEST_CASE("verify holds on what convert made of a qwen4_exp checkpoint") {
  const auto golden = fixtures::find_golden("qwen4-exp-t1-fp8");
  if (!golden.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  const auto directory = scratch.path() / "mlx";
  REQUIRE(kalibri_program({"convert", *golden, directory, "--group-size", "32"}).exit_status == 0);
  const RunResult run = kalibri_program({"verify", directory, "--out", scratch.path() / "out"});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  CHECK_THAT(run.out, ContainsSubstring("Verdict: held"));
}

TEST_CASE(
    "verify takes the reference's dumps instead of running it, mistrusts what has no floor, and sees one changed bit") {
  const auto golden = fixtures::find_golden("kolibri1-k1-fp8");
  if (!golden.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  const auto first = scratch.path() / "first";
  REQUIRE(kalibri_program({"verify", *golden, "--out", first}).exit_status == 0);
  const std::vector<std::string> given = {"--reference", first / "reference.h5"};
  const std::vector<std::string> floors = {"--reference64", first / "reference-f64.h5", "--reference64",
                                           first / "reference-f64-teacher-forced.h5"};
  const auto verify = [&](const std::filesystem::path& directory, const char* out, bool with_floors) {
    std::vector<std::string> arguments = {"verify", directory, "--out", scratch.path() / out};
    arguments.insert(arguments.end(), given.begin(), given.end());
    if (with_floors) arguments.insert(arguments.end(), floors.begin(), floors.end());
    return kalibri_program(arguments);
  };
  const RunResult again = verify(*golden, "again", true);
  CHECK(again.exit_status == 0);
  CHECK_THAT(again.err, !ContainsSubstring("warning"));
  std::vector<std::string> rounded = {"verify", *golden, "--out", scratch.path() / "rounded", "--precision", "bf16"};
  rounded.insert(rounded.end(), given.begin(), given.end());
  CHECK_THAT(kalibri_program(rounded).err, ContainsSubstring("has precision 'native', the engine's is 'bf16'"));

  const RunResult no_floor = verify(*golden, "no-floor", false);
  CHECK(no_floor.exit_status == 1);
  CHECK(report_of(scratch.path() / "no-floor").at("verdict").at("status") == "mistrusted");

  const auto changed = scratch.path() / "changed";
  std::filesystem::create_directory(changed);
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(*golden / file, changed / file);
  std::string bytes = fixtures::read_file(changed / "model.safetensors");
  const auto places = fixtures::read_safetensors_header(changed / "model.safetensors");
  const auto& scale = places.at("model.layers.2.self_attn.v_proj.weight_scale_inv");
  bytes[static_cast<std::size_t>(scale.file_offset) + 1] ^= 0x40;  // the middle of an f32's mantissa
  std::filesystem::permissions(changed / "model.safetensors", std::filesystem::perms::owner_all);
  fixtures::write_file(changed / "model.safetensors", bytes);
  const RunResult other = verify(changed, "other", true);
  INFO(other.out << other.err);
  CHECK(other.exit_status == 1);
  const json report = report_of(scratch.path() / "other");
  CHECK(report.at("verdict").at("status") == "fell_short");
  for (const json& row : report.at("comparisons").at("teacher_forced").at("rows")) {
    if (row.at("status") == "fell_short") CHECK(row.at("layer") == 2);
  }
}

TEST_CASE("verify shows without being asked that the right blocks are attended to, with prompts that leave a choice") {
  const auto golden = fixtures::find_golden("qwen4-exp-t1-fp8");
  if (!golden.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  const RunResult run = kalibri_program({"verify", *golden, "--out", scratch.path() / "out"});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  const json report = report_of(scratch.path() / "out");
  for (const char* mode : {"teacher_forced", "chained"}) {
    std::int64_t n_queries = 0;
    for (const json& row : report.at("comparisons").at(mode).at("rows")) {
      CHECK(row.at("rel_per_stream").size() == 4);
      if (row.at("blocks").is_null()) continue;
      CHECK(row.at("layer") == 3);
      n_queries += row.at("blocks").at("queries_with_choice").get<std::int64_t>();
    }
    CHECK(n_queries == 18);  // positions 19 to 36 of 37: budget 16, blocks of 4
  }
  int n_held = 0;
  for (const json& finding : report.at("findings")) {
    const bool is_blocks = finding.at("id") == "teacher-forced/blocks" || finding.at("id") == "chained/blocks";
    n_held += is_blocks && finding.at("status") == "held" ? 1 : 0;
  }
  CHECK(n_held == 2);
}

TEST_CASE("verify refuses before it touches an earlier report, and does not read from the folder that it empties") {
  const auto golden = fixtures::find_golden("kolibri1-k1-fp8");
  if (!golden.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  const auto out = scratch.path() / "out";
  REQUIRE(kalibri_program({"verify", *golden, "--out", out}).exit_status == 0);
  const std::string report = fixtures::read_file(out / "report.json");
  const auto strange = scratch.path() / "strange";
  std::filesystem::create_directory(strange);
  fixtures::write_file(strange / "config.json", R"({"model_type": "llama"})");
  fixtures::write_file(strange / "model.safetensors", fixtures::raw_safetensors("{}", ""));
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"verify", strange}, "model_type: 'llama'"},
      {{"verify", *golden, "--layers", "4-9"}, "--layers"},
      {{"verify", *golden, "--tokens", "/nowhere.json"}, "/nowhere.json"},
      {{"verify", *golden, "--reference", out / "reference.h5"}, "lies in the folder that this run writes"}};
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--out", out});
    const RunResult run = kalibri_program(all);
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring(message));
    CHECK(fixtures::read_file(out / "report.json") == report);
    CHECK(std::filesystem::exists(out / "reference.h5"));
  }
}

TEST_CASE("verify refuses what it cannot use with status 2") {
  const auto golden = fixtures::find_golden("kolibri1-k1-fp8");
  if (!golden.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::TempDirectory scratch;
  const std::string out = scratch.path() / "out";
  const RunResult missing = kalibri_program({"verify", "/nowhere", "--out", out});
  CHECK(missing.exit_status == 2);
  CHECK_THAT(missing.err, ContainsSubstring("/nowhere"));
  const RunResult no_reference =
      kalibri_program({"verify", *golden, "--out", out, "--reference-program", "/nowhere/program"});
  CHECK(no_reference.exit_status == 2);
  CHECK_THAT(no_reference.err, ContainsSubstring("/nowhere/program"));
  const RunResult silent = kalibri_program({"verify", *golden, "--out", out, "--reference-program", "/bin/true"});
  CHECK(silent.exit_status == 2);
  CHECK_THAT(silent.err, ContainsSubstring("/bin/true: ended without an error, but wrote no"));
  CHECK_THAT(kalibri_program({"verify", *golden, "--out", ""}).err, ContainsSubstring("is empty"));
  const RunResult floors_alone = kalibri_program({"verify", *golden, "--out", out, "--reference64", "x.h5"});
  CHECK(floors_alone.exit_status == 2);
  CHECK_THAT(floors_alone.err, ContainsSubstring("--reference64 goes with --reference"));
}

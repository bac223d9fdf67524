#include "engine/cli/tests/mutant_runs.hpp"

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"

namespace kalibri::test {

namespace {

using fixtures::RunResult;
using nlohmann::json;

const std::string kBin = KALIBRI_BIN_DIR;

std::vector<std::string> taps_option(const Fixture& fixture) {
  if (fixture.taps.empty()) return {};
  std::vector<std::string> option = {"--taps", ""};
  for (const std::string& tap : fixture.taps) option[1] += (option[1].empty() ? "" : ",") + tap;
  return option;
}

void run_reference(const Fixture& fixture, const std::filesystem::path& checkpoint, const std::filesystem::path& out,
                   const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run", checkpoint, "--tokens",    fixture.tokens,
                                        "-o",  out,        "--precision", fixture.precision};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const auto taps = taps_option(fixture);
  arguments.insert(arguments.end(), taps.begin(), taps.end());
  const RunResult run = fixtures::run_program(kBin + "/kalibri-reference", arguments);
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
}

}  // namespace

std::optional<Fixture> find_fixture(const std::string& set, const fixtures::TempDirectory& scratch,
                                    std::vector<std::string> taps) {
  const auto directory = fixtures::find_golden(set);
  if (!directory.has_value()) return std::nullopt;
  Fixture fixture;
  fixture.set = set;
  fixture.directory = *directory;
  fixture.tokens = scratch.path() / (set + ".json");
  fixture.taps = std::move(taps);
  const auto golden = fixtures::read_safetensors(*directory / "golden.safetensors");
  fixtures::write_file(fixture.tokens, json{{"golden", golden.at("input_ids").integers()}}.dump());
  return fixture;
}

std::optional<Fixture> prepare(const std::string& set, const fixtures::TempDirectory& scratch,
                               std::vector<std::string> taps) {
  const auto fixture = find_fixture(set, scratch, std::move(taps));
  if (!fixture.has_value()) return std::nullopt;
  return with_reference_of(*fixture, set, fixture->directory, scratch);
}

Fixture with_reference_of(const Fixture& fixture, const std::string& name, const std::filesystem::path& directory,
                          const fixtures::TempDirectory& scratch) {
  Fixture result = fixture;
  result.reference = scratch.path() / (name + "-r.h5");
  result.reference64 = scratch.path() / (name + "-r64.h5");
  result.teacher_forced64 = scratch.path() / (name + "-tf64.h5");
  run_reference(result, directory, result.reference, {});
  run_reference(result, directory, result.reference64, {"--dtype", "f64"});
  run_reference(result, directory, result.teacher_forced64,
                {"--dtype", "f64", "--mode", "teacher-forced", "--inputs", result.reference});
  return result;
}

Outcome verify(const Fixture& fixture, const std::string& mutant, const fixtures::TempDirectory& scratch) {
  const auto out = scratch.path() / "report";
  std::filesystem::remove_all(out);
  std::vector<std::string> arguments;
  if (!mutant.empty()) arguments = {"--mutant", mutant};
  const std::vector<std::string> rest = {"verify",        fixture.directory,
                                         "--tokens",      fixture.tokens,
                                         "--reference",   fixture.reference,
                                         "--reference64", fixture.reference64,
                                         "--reference64", fixture.teacher_forced64,
                                         "--precision",   fixture.precision,
                                         "--out",         out,
                                         "--json"};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  const auto taps = taps_option(fixture);
  arguments.insert(arguments.end(), taps.begin(), taps.end());
  const RunResult run = fixtures::run_program(kBin + "/kalibri-mutants", arguments);
  INFO(mutant << " on " << fixture.set << "\n" << run.err);
  REQUIRE((run.exit_status == 0 || run.exit_status == 1));
  Outcome outcome;
  outcome.exit_status = run.exit_status;
  const json report = json::parse(run.out);
  for (const json& finding : report.at("findings")) {
    if (finding.at("status") == "fell_short") outcome.red.insert(finding.at("id").get<std::string>());
  }
  outcome.comparisons = report.at("comparisons");
  return outcome;
}

}  // namespace kalibri::test

// What tests of deliberate defects share: a golden set with the reference's dumps of it, made once, and `verify` of
// kalibri-mutants on it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fixtures/temp_directory.hpp"

namespace kalibri::test {

/// Golden ids as a prompt, and the reference's three dumps of it.
struct Fixture {
  std::string set;
  std::filesystem::path directory;  // the checkpoint that the engine runs
  std::filesystem::path tokens, reference, reference64, teacher_forced64;
  std::vector<std::string> taps;    // finer tensors to compare
  std::string precision = "exact";  // of both sides
};

/// Golden set `set` and its prompt, without dumps; nothing when the set is not there.
std::optional<Fixture> find_fixture(const std::string& set, const fixtures::TempDirectory& scratch,
                                    std::vector<std::string> taps = {});

/// The same with the reference's dumps.
std::optional<Fixture> prepare(const std::string& set, const fixtures::TempDirectory& scratch,
                               std::vector<std::string> taps = {});

/// The same with the reference's dumps of another checkpoint, named `name`, in `directory`.
Fixture with_reference_of(const Fixture& fixture, const std::string& name, const std::filesystem::path& directory,
                          const fixtures::TempDirectory& scratch);

struct Outcome {
  int exit_status = -1;
  std::set<std::string> red;   // ids of the findings that fell short
  nlohmann::json comparisons;  // the report's
};

/// `verify` with one defect (none when empty) on one fixture.
Outcome verify(const Fixture& fixture, const std::string& mutant, const fixtures::TempDirectory& scratch);

}  // namespace kalibri::test

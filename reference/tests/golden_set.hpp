// A golden set, the program run on it, and the comparison of the two.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fixtures/run_program.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "reference/safetensors.hpp"

namespace kalibri::reference::test {

/// Prompts of a token file.
using Tokens = std::map<std::string, std::vector<std::int64_t>>;

struct GoldenSet {
  std::filesystem::path checkpoint;
  SafetensorsFile golden;  // by the reference's own reader
  std::int64_t n_layers = 0;
  fixtures::TempDirectory scratch = {};

  /// Elements of golden tensor `name` (F32, F64 or I64), exactly.
  [[nodiscard]] std::vector<double> values(const std::string& name) const;
  [[nodiscard]] std::int64_t width(const std::string& name) const;  // its last axis
  [[nodiscard]] std::vector<std::int64_t> ids(const std::string& name) const;
};

/// The five sets' names.
extern const std::vector<std::string> kGoldenSets;
/// Those of k1 in the layout of MLX; they have no fp64 outputs and no continuation.
extern const std::vector<std::string> kMlxGoldenSets;

/// The set called `name`, or nothing when the data are not there. kolibri1-k2-sharded is kolibri1-k2, cut into shards.
std::unique_ptr<GoldenSet> open_golden_set(const std::string& name);

/// Runs `kalibri-reference run checkpoint --tokens … -o out …`.
fixtures::RunResult run_reference(const std::filesystem::path& checkpoint, const Tokens& tokens,
                                  const std::filesystem::path& out, const std::vector<std::string>& more = {});

/// The dump of the set's own prompt, called "golden". Throws std::runtime_error with the program's words if it fails.
dump::Reader run_golden(const GoldenSet& set, const std::filesystem::path& checkpoint,
                        const std::vector<std::string>& more);

/// All rows of dataset `path` of prompt "golden".
std::vector<double> read_all(const dump::Reader& dump, const std::string& path);

/// What differs from the golden data by more than the bounds, layer by layer: empty when all of it is reproduced.
/// `summary`, if given, takes one line with the largest differences.
std::vector<std::string> complaints_f32(const GoldenSet& set, const dump::Reader& dump, std::string* summary = nullptr);
std::vector<std::string> complaints_f64(const GoldenSet& set, const dump::Reader& dump, std::string* summary = nullptr);

}  // namespace kalibri::reference::test

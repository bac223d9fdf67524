// Dumps made of formulas, held in memory so that a test can change any number before they are written. The three sides
// of a verification: a reference in fp32, the same in fp64, and a candidate; they differ by rounding-like noise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oracle/dump/reader.hpp"
#include "oracle/dump/writer.hpp"

namespace kalibri::oracle::synthetic {

struct Dataset {
  std::vector<std::int64_t> row_dims;
  std::vector<double> values;
  bool floating = true;
};

struct ScheduleData {
  std::int64_t first_position = 0, n_prefilled = 0;
};

struct PromptData {
  std::string name;
  std::vector<std::int32_t> tokens;
  std::map<std::string, Dataset> datasets;  // by path below the prompt
  std::map<std::string, ScheduleData> schedules;

  /// Element (row, column) of a dataset.
  double& at(const std::string& path, std::size_t row, std::size_t column);
};

struct Dump {
  dump::Header header;
  std::vector<PromptData> prompts;
  bool is_f64 = false;

  PromptData& prompt(const std::string& name);
  /// Writes the dump to folder/name and opens it.
  [[nodiscard]] dump::Reader write(const std::filesystem::path& folder, const std::string& name) const;
};

inline constexpr std::int64_t kLayers = 3, kHidden = 40, kExperts = 8, kTopK = 2, kVocab = 24;
inline constexpr std::int64_t kSparseLayer = 1, kBlockSize = 2, kKept = 3;

/// Prompts "long" (21 tokens) and "one" (1 token): exact numbers, one layer tensor per name that is always dumped.
/// Router gaps are near 1. Layer kSparseLayer has blocks of kBlockSize tokens, of which a query keeps the kKept with
/// the highest scores: that at position 7 is the first with a choice. mode: "chained" or "teacher-forced".
Dump exact(const std::string& mode);

/// `dump` with noise of about 1e-7 of each row's size on every floating number but the -1 of an incomplete block, and
/// rounded to fp32. Equal seeds, equal noise.
Dump noisy(const Dump& dump, const std::string& producer, std::uint64_t seed);

/// A decode dump of the same engine: schedules tail (8), head (13) and bands (all) with the logits of `chained`.
Dump decoded(const Dump& chained);

}  // namespace kalibri::oracle::synthetic

// Opens a dump, validates all of its structure, and reads rows. An unfinished, truncated, foreign or contradictory file
// is refused with a message that names it; values that are not finite are data, not errors (a comparison reports them).
// Datasets that the format does not know are allowed and listed: another producer may add some. One thread at a time.
//
// Mandatory are the root attributes format, version and complete, and in each prompt `tokens`. An absent text is empty,
// an absent n_streams is 1, an absent mode is "chained".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oracle/dump/error.hpp"
#include "oracle/dump/names.hpp"
#include "oracle/dump/writer.hpp"

namespace kalibri::dump {

struct DatasetInfo {
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
};

/// A run through the caches: row i of decode/<name>/logits is position first_position + i.
struct Schedule {
  std::string name;
  std::int64_t first_position = 0;
  std::int64_t n_prefilled = 0;
  std::int64_t n_rows = 0;
};

struct PromptInfo {
  std::string name;
  std::string text_sha256;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> layers;     // numbers of the layers present, ascending
  std::vector<std::int64_t> positions;  // rows of `logits`: positions [P]; all of them when the file has no list
  std::vector<Schedule> schedules;
};

class Reader {
 public:
  /// Throws Error naming the file and what is wrong.
  explicit Reader(const std::filesystem::path& path);
  ~Reader();
  Reader(Reader&&) noexcept;

  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] const Header& header() const;
  [[nodiscard]] std::int64_t peak_rss_bytes() const;
  [[nodiscard]] double wall_s() const;
  /// In the order they were written; a file of another producer may have them by name.
  [[nodiscard]] const std::vector<PromptInfo>& prompts() const;
  [[nodiscard]] const PromptInfo* find_prompt(const std::string& name) const;
  /// Paths below /prompts of datasets that the format does not know.
  [[nodiscard]] const std::vector<std::string>& unknown() const;

  /// Shape and type of `path` below the prompt ("logits", layer_path(3, "residual")), or nothing when it is absent.
  [[nodiscard]] std::optional<DatasetInfo> find(const std::string& prompt, const std::string& path) const;

  /// Rows [first_row, first_row + n_rows) of a floating dataset, widened to f64; of an integer one, to i64.
  /// Throws Error when it is absent, of the other kind, or shorter.
  [[nodiscard]] std::vector<double> read_f64(const std::string& prompt, const std::string& path, std::int64_t first_row,
                                             std::int64_t n_rows) const;
  [[nodiscard]] std::vector<std::int64_t> read_i64(const std::string& prompt, const std::string& path,
                                                   std::int64_t first_row, std::int64_t n_rows) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kalibri::dump

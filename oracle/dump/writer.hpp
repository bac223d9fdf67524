// Writes one dump, version 1, to a temporary name beside the target and renames it when complete. Memory does not grow
// with depth or length: tensors are written in blocks of rows. No model is known here. One thread at a time.
//
// What the outside can get wrong (a full disk, a folder that is not writable, a prompt's name) throws Error; what only
// a caller can get wrong (a row written twice, a shape that changes) throws std::logic_error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oracle/dump/error.hpp"
#include "oracle/dump/names.hpp"

namespace kalibri::dump {

/// Root attributes. Texts are UTF-8.
struct Header {
  std::string producer;  // "kalibri", "kalibri-reference", ...
  std::string producer_version;
  std::string model_type;
  std::int64_t n_streams = 1;
  std::string mode;                    // "chained", "teacher-forced", "decode"
  std::string checkpoint_fingerprint;  // SHA-256, hex
  std::string precision;               // canonical text
  std::string options;                 // JSON object: everything needed to run it again
};

class Writer {
 public:
  /// Creates PATH.partial. One that a killed run left is replaced; one that a run is still writing is an Error, and so
  /// is a PATH that holds anything but a dump.
  Writer(const std::filesystem::path& path, const Header& header);
  /// Without finish() the temporary file is removed.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Starts prompt `name` (unique, not empty, no '/') and makes it the current one; `tokens` (at least one) are written
  /// as int32. text_sha256 may be empty.
  void begin_prompt(const std::string& name, std::span<const std::int32_t> tokens, const std::string& text_sha256);

  /// Makes an earlier prompt the current one again: a run that takes layer by layer goes through all prompts in each.
  void select_prompt(const std::string& name);

  /// Rows [first_row, first_row + n) of dataset `path` of the current prompt, for example "embedding",
  /// "layers/03/residual", "layers/03/taps/attention_out", "decode/tail/logits". The first call fixes type and shape:
  /// n_rows_total rows of `row_dims` (may be empty for [T]); n = data.size() / product(row_dims). Rows may come in any
  /// order, each once; finish() refuses a tensor with rows missing. Blocks of many rows are faster than single rows.
  void write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                  std::int64_t first_row, std::span<const float> data);
  void write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                  std::int64_t first_row, std::span<const double> data);
  void write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                  std::int64_t first_row, std::span<const std::int32_t> data);
  void write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                  std::int64_t first_row, std::span<const std::int64_t> data);

  /// Attributes of decode/<schedule> of the current prompt: row i of its logits is position first_position + i, after
  /// the first n_prefilled tokens had gone through at once.
  void describe_schedule(const std::string& schedule, std::int64_t first_position, std::int64_t n_prefilled);

  /// Writes peak_rss_bytes, wall_s and complete = 1, closes, syncs, renames.
  void finish(std::int64_t peak_rss_bytes, double wall_s);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kalibri::dump

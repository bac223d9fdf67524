// The measured floor: how far the reference in fp32 lies from the reference in fp64, both in one precision.
// Teacher-forced it isolates each layer (both got the same fp32 inputs), chained it holds what accumulates.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oracle/compare/dump_difference.hpp"
#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

enum class RunMode : std::uint8_t { teacher_forced, chained };

/// Where the precision rounds, the largest errors are those of any layer: by luck one layer shows no number on the
/// other side of a rounding.
struct TensorFloor {
  double rel_token_max = 0;                     // largest row error, at least kLeastFloor and the precision's unit
  std::optional<double> rel_token_max_trimmed;  // of wide rows
  double max_abs = 0;                           // at least kLeastFloor times the reference's largest value
  double rel_token_quartile = 0;                // what three quarters of the rows stay within, at least kLeastFloor
};

struct LogitsFloor {
  double kl_mean = 0, kl_max = 0;  // at least kl_rounding; kl_max at least kl_noise
  double max_abs_logit = 0, rel_token_max = 0, rel_token_quartile = 0;
  double squared_error = 0;  // sum over all positions and ids
  double kl_unit = 0;        // the KL that logits make which are all off by the precision's unit, at most
  std::int64_t n_positions = 0, n_vocab = 0;

  /// The KL that logits make which are all off by their root mean square, independently, at most: half its square.
  [[nodiscard]] double kl_noise() const;
};

struct Floor {
  double unit =
      0;  // rounding_unit() of the precision; chained, where errors of layers add up, times their root (up to a limit)
  std::map<std::pair<std::int64_t, std::string>, TensorFloor>
      tensors;                        // by layer (or kNoLayer) and name; over all prompts
  std::optional<LogitsFloor> logits;  // absent when no position remained
  std::int64_t tokens_left_out = 0;   // token-layer pairs whose experts or blocks differ
  std::vector<Finding> findings;      // whether the floor can be trusted

  /// Null when nothing was measured there.
  [[nodiscard]] const TensorFloor* find(std::int64_t layer, const std::string& tensor) const;
  /// rel_token_quartile of a tensor or of the logits; nothing when none was measured.
  [[nodiscard]] std::optional<double> quartile(std::int64_t layer, const std::string& tensor) const;
};

/// A floor and the comparison that it was measured in.
struct MeasuredFloor {
  DumpDifference difference;
  Floor floor;
};

/// `difference` compares the reference in fp32 (as reference) with its fp64 run (as candidate), both in a precision of
/// rounding_unit() `unit`. Mistrusted when it asks for a bound that proves nothing (kLoosestBound and those after it).
Floor measure_floor(const DumpDifference& difference, RunMode mode, double unit = 0);

/// Whether the two may make a floor: one program's own fp32 and fp64 in one precision. Anything else, the candidate's
/// dump among it, would excuse what is to be found; the finding is then mistrusted. check: of the comparison, for
/// example "floor-chained".
Finding floor_origin(const dump::Reader& reference, const dump::Reader& other, const std::string& check);

/// "f32" or "f64" by the first floating dataset; "none" when there is none.
std::string element_type(const dump::Reader& dump);

nlohmann::json to_json(const Floor& floor);

}  // namespace kalibri::oracle

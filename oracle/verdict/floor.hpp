// The measured floor: how far the reference in fp32 lies from the reference in fp64 or, for a candidate whose precision
// rounds results, from the reference in that precision. Teacher-forced it isolates each layer (both got the same fp32
// inputs), chained it holds what accumulates.
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

struct TensorFloor {
  double rel_token_max = 0;                     // largest row error, at least kLeastFloor
  std::optional<double> rel_token_max_trimmed;  // of wide rows
  double max_abs = 0;                           // at least kLeastFloor times the reference's largest value
};

struct LogitsFloor {
  double kl_mean = 0, kl_max = 0;  // at least kl_rounding; kl_max at least kl_noise
  double max_abs_logit = 0, rel_token_max = 0;
  double squared_error = 0;  // sum over all positions and ids
  std::int64_t n_positions = 0, n_vocab = 0;

  /// The KL that logits make which are all off by their root mean square, independently, at most: half its square.
  [[nodiscard]] double kl_noise() const;
};

struct Floor {
  std::map<std::pair<std::int64_t, std::string>, TensorFloor>
      tensors;                        // by layer (or kNoLayer) and name; over all prompts
  std::optional<LogitsFloor> logits;  // absent when no position remained
  std::int64_t tokens_left_out = 0;   // token-layer pairs whose experts or blocks differ
  std::vector<Finding> findings;      // whether the floor can be trusted

  /// Null when nothing was measured there.
  [[nodiscard]] const TensorFloor* find(std::int64_t layer, const std::string& tensor) const;
};

/// A floor and the comparison that it was measured in.
struct MeasuredFloor {
  DumpDifference difference;
  Floor floor;
};

/// `difference` compares the fp32 reference (as reference) with its other run (as candidate). Mistrusted when it asks
/// for a bound of a relative error above `loosest_bound`.
Floor measure_floor(const DumpDifference& difference, RunMode mode, double loosest_bound = kLoosestBound);

/// Whether `other` is the same program's run of the reference in the precision of `candidate` (null: there is none),
/// and another than the reference's, by another program than the candidate's.
bool is_rounded(const dump::Reader& reference, const dump::Reader& other, const dump::Reader* candidate);

/// Whether the two may make a floor: one program's own fp32 and fp64, or is_rounded. Anything else, the candidate's
/// dump among it, would excuse what is to be found; the finding is then mistrusted. check: of the comparison, for
/// example "floor-chained".
Finding floor_origin(const dump::Reader& reference, const dump::Reader& other, const dump::Reader* candidate,
                     const std::string& check);

/// "f32" or "f64" by the first floating dataset; "none" when there is none.
std::string element_type(const dump::Reader& dump);

nlohmann::json to_json(const Floor& floor);

}  // namespace kalibri::oracle

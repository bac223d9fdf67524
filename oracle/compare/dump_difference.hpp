// The difference of two whole dumps: every tensor that both hold, prompt by prompt and layer by layer, and what stands
// in the way of trusting it (identity, missing tensors, values that are not finite). It knows no bounds.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oracle/compare/finding.hpp"
#include "oracle/compare/logits_difference.hpp"
#include "oracle/compare/ngram_rows.hpp"
#include "oracle/compare/routing.hpp"
#include "oracle/compare/selection.hpp"

namespace kalibri::oracle {

/// The layer number of tensors that belong to none (embedding, final_norm, logits).
inline constexpr std::int64_t kNoLayer = -1;

struct LayerDifference {
  std::int64_t layer = 0;
  std::map<std::string, TensorDifference> tensors;  // floating ones by name; expert_weights paired by id
  std::optional<Routing> routing;
  std::optional<Selection> selection;
  std::optional<NgramRows> ngram_rows;
};

struct PromptDifference {
  std::string prompt;
  std::int64_t n_tokens = 0;
  std::map<std::string, TensorDifference> tensors;  // embedding, final_norm
  std::vector<LayerDifference> layers;
  std::optional<LogitsDifference> logits;
};

struct DumpDifference {
  std::string check;  // begins the findings' ids
  std::vector<PromptDifference> prompts;
  std::vector<Finding> findings;  // identity, complete, finite
};

/// Layers that are compared: [first, end).
struct LayerRange {
  std::int64_t first = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// Throws dump::Error (a refused comparison) when token ids or shapes differ or no prompt is common. `check` names the
/// comparison in findings.
DumpDifference compare_dumps(const dump::Reader& reference, const dump::Reader& candidate, const std::string& check,
                             const LayerRange& layers = {});

/// Throws dump::Error (a refused comparison) when the token ids or position ids of one prompt differ.
void refuse_other_tokens(const dump::Reader& reference, const dump::PromptInfo& ours, const dump::Reader& candidate,
                         const dump::PromptInfo& theirs);

/// Identity of two dumps: same checkpoint, same model type, not one and the same file.
Finding compare_identity(const dump::Reader& reference, const dump::Reader& candidate, const std::string& check);

/// The finding for values that are not finite: fell_short with the first one's place, or held.
Finding finite_finding(const std::string& check, const std::vector<Finding>& non_finite);

}  // namespace kalibri::oracle

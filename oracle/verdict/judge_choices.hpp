// What the two sides chose: experts by token, blocks of earlier tokens by query of sparse attention, and rows of the
// n-gram table.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "oracle/verdict/judge_layers.hpp"

namespace kalibri::oracle {

/// Expert sets: equal but for excused ties, with their number and largest gap.
Finding experts_finding(const std::string& check, const std::vector<JudgedLayer>& layers);

/// The same of the blocks that sparse attention kept, over the queries that had a choice: mistrusted when none had,
/// not_applicable when the dumps hold no selection.
Finding blocks_finding(const std::string& check, const std::vector<JudgedLayer>& layers);

/// Rows of the n-gram table: equal, nothing is excused. Nothing when the dumps hold none.
std::optional<Finding> ngram_rows_finding(const std::string& check, const std::vector<JudgedLayer>& layers);

/// Member "blocks" of a layer's row; the layer has a selection.
nlohmann::json blocks_row(const JudgedLayer& judged);

}  // namespace kalibri::oracle

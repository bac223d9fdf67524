// Layer tensors against their bounds: the rows of a report, and one finding a tensor that names the worst of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "oracle/verdict/floor.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

/// One tensor of one layer and prompt by one measure, over the rows that are judged.
struct JudgedTensor {
  std::int64_t layer = kNoLayer;
  std::string prompt;
  std::string tensor;
  std::string
      measure;  // rel_token_max, rel_token_max_trimmed, or max_abs for router_gap (a difference that may be near 0)
  double value = 0;
  std::optional<double> bound, floor;  // absent without a floor
  std::int64_t position = -1;
  Status status = Status::not_applicable;
};

struct JudgedLayer {
  const PromptDifference* prompt = nullptr;
  const LayerDifference* layer = nullptr;
  LayerTies ties;
  double block_noise = 0;  // gaps of exchanged blocks up to here are ties
  std::vector<JudgedTensor> tensors;

  [[nodiscard]] const JudgedTensor* find(const std::string& tensor, const std::string& measure) const;
};

/// Every layer of every prompt, by layer and then in the prompts' order. Teacher-forced: each tensor within kKappa
/// floors, mistrusted without a floor. Chained: values only, judged not_applicable (errors upstream add to them; the
/// logits are judged). `difference` must outlive the result.
std::vector<JudgedLayer> judge_layers(const DumpDifference& difference, const Floor* floor, RunMode mode);

/// embedding and final_norm of each prompt, each within kKappa floors (chained: final_norm of the clean positions).
std::vector<JudgedTensor> judge_ends(const DumpDifference& difference, const Floor* floor, RunMode mode);

/// One finding a tensor and measure, with the worst value (of the heaviest status that nearest its bound) and the first
/// layer that fell short.
std::vector<Finding> tensor_findings(const std::string& check, const std::vector<JudgedTensor>& judged);

/// A report's rows by layer and prompt: the residual's metrics, the choices, and the other tensors.
nlohmann::json layer_rows(const std::vector<JudgedLayer>& layers);

}  // namespace kalibri::oracle

// Position bands, as the published verification of Kolibri 1 has them: where in a prompt the logits differ, and the
// residual maxima that show a sink token. It reads dumps and knows no bounds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oracle/compare/logits_difference.hpp"

namespace kalibri::oracle {

/// The bands [first, end) of n_tokens positions: edges are those of 0, 1, 4, 16, 64, 256 below the window, then the
/// window, then n_tokens; clipped, empty ones left out. window 0: unknown, no edge there.
std::vector<std::pair<std::int64_t, std::int64_t>> band_edges(std::int64_t n_tokens, std::int64_t window);

/// Mean KL and top1 of each band: first, end, kl_mean, top1 of the prefill, decode_kl_mean, decode_top1 of the
/// token-by-token decode (null where it has no position).
nlohmann::json band_rows(std::int64_t n_tokens, std::int64_t window, const LogitsDifference& prefill,
                         const std::optional<LogitsDifference>& decode);

/// Of each layer's residual, max |x| of the first three positions and the median over positions from 16 on.
nlohmann::json residual_maxima(const dump::Reader& reference, const dump::PromptInfo& prompt);

/// One prompt: mean KL and top1 by band of the prefill and of the token-by-token decode (null where it has no
/// position), KL of the first 8 positions of both, and of the reference the norms of the first 4 embedding rows, max
/// |x| of the final norm and of every layer's residual at the first positions with the median over positions from 16
/// on.
nlohmann::json bands_of_prompt(const dump::Reader& reference, const dump::PromptInfo& prompt, std::int64_t window,
                               const LogitsDifference& prefill, const std::optional<LogitsDifference>& decode);

}  // namespace kalibri::oracle

// bench.json: what `ci/bench` measured, beside what is to be reached; and its tables. It knows the JSON of
// kernels_bench, `kalibri bench` and llama-bench, and judges nothing but whether two runs can be compared.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kalibri::reports {

/// Joins runs, each {"kind", "name", "others", "result"}, in the order in which they were done; others: how many
/// processors other programs kept busy meanwhile.
///   machine   name: the processor
///   kernels   result: what kernels_bench --json writes, of one instruction set
///   campaign  name: of the model; result: what kalibri bench --campaign --json writes
///   ours, theirs  name: of a comparison; result: what kalibri bench --json and llama-bench -o json write. The n-th of
///             the one kind goes with the n-th of the other.
///   disk, streamed  as streaming_rows takes them, likewise in pairs
///   missing   name: of what was not measured; result: why
/// Shares are medians over the matrices' sizes, ratios medians over the pairs. Beside more than a tenth of a
/// processor's work by others a comparison reaches nothing, it is "disturbed": engines whose threads wait by spinning
/// suffer more from it than others. Throws std::runtime_error for runs that cannot be compared (different numbers of
/// threads or tokens, a rate that is no positive number), an unknown kind or name, and nlohmann::json::exception for
/// another form.
nlohmann::ordered_json bench_report(const std::vector<nlohmann::json>& runs);

std::string bench_markdown(const nlohmann::json& report);

}  // namespace kalibri::reports

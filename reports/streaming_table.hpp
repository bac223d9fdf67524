// Experts from disk, beside what the disk itself gives: rows of bench.json and their table.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "reports/tables.hpp"

namespace kalibri::reports {

/// disk: runs whose result is {"bytes", "seconds"} of a reader that does nothing else; streamed: runs whose result is
/// what `kalibri bench --campaign --expert-cache N --json` writes; in turn, the n-th of the one goes with the n-th of
/// the other. A row for decoding, which is what the goal is for, and one for the prompts: bytes that were read for
/// experts, by all the time that passed, whatever was done in it. "reached" is "unproven" where the kernel counted
/// fewer bytes from the disks than were read: memory gave the rest. Throws std::runtime_error for runs that cannot be
/// compared, and nlohmann::json::exception for another form.
nlohmann::ordered_json streaming_rows(const std::vector<nlohmann::json>& disk,
                                      const std::vector<nlohmann::json>& streamed);

Table streaming_table(const nlohmann::json& report);

}  // namespace kalibri::reports

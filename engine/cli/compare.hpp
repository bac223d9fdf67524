// `kalibri compare`: any two dumps, by whichever programs.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace kalibri::cli {

struct CompareOptions {
  std::string reference;                 // REF.h5
  std::string candidate;                 // CAND.h5
  std::vector<std::string> reference64;  // the reference in fp64, chained and/or teacher-forced on REF.h5: the floors
  std::int64_t window = 0;               // position bands get an edge there; 0 = unknown
  std::string json;                      // file for the report; empty: none; "-": to `out`
  bool colour = false;
};

/// Compares what the candidate's mode allows: layers and head (teacher-forced), layers, logits and bands (chained),
/// logits through the caches (decode; of the reference's own program bit by bit). Without floors the numbers are shown
/// and the verdict is mistrusted. Returns the exit status (0 or 1). Throws Error, dump::Error (a refused comparison,
/// status 2).
int compare_command(const CompareOptions& options, std::ostream& out);

}  // namespace kalibri::cli

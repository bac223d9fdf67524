// What --weights means, for the commands that answer: where the weights lie.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/runtime/weight_place.hpp"

namespace kalibri::cli {

/// Adds the flag to a command of the command line.
template <typename App>
void add_weight_place(App& command, std::string& place) {
  command
      .add_option("--weights", place,
                  "Where they lie: mapped (in the files' pages), memory (of their own, in large pages), or auto: "
                  "memory where all of them fit and are measured to be read faster (never changes a bit)")
      ->capture_default_str();
}

/// Throws Error(usage) that says what is expected.
runtime::WeightPlaceOptions weight_place(const std::string& place, int n_threads);

/// "in memory (0.98 GB read, room for 3.28 GB of experts)".
std::string weight_place_text(const runtime::WeightPlaceInfo& info);
nlohmann::ordered_json weight_place_json(const runtime::WeightPlaceInfo& info);

/// A line for people, when they asked, when the weights are in memory, and when they would be but do not fit.
void tell_weight_place(const runtime::WeightPlaceInfo& info, bool is_asked, std::ostream& notes);

}  // namespace kalibri::cli

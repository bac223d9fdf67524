// What `verify` and `tables` both do around their runs: choose prompts, open the reference's run, say what runs.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cli/default_prompts.hpp"
#include "oracle/dump/reader.hpp"

namespace kalibri::cli {

/// The prompts of --tokens, of --prompts, else those of `reference` (may be null), else default_prompts(); checked.
/// Throws what reading them throws.
DefaultPrompts choose_prompts(const std::string& tokens, const std::vector<std::string>& prompts,
                              const dump::Reader* reference, const std::string& checkpoint,
                              const model::ModelInfo& info, std::ostream* notes);

/// Opens the reference's own fp32 run. Throws Error(input) for a dump of another mode, dump::Error.
std::unique_ptr<const dump::Reader> open_reference(const std::string& path);

/// The folder's own name.
std::string checkpoint_name(const std::string& directory);

/// JSON whose texts are UTF-8: a path may hold any bytes.
nlohmann::json well_formed(const nlohmann::json& value);

/// Says on `progress` (null: nowhere) what runs and how long it took.
void step(std::ostream* progress, const std::string& name, const std::function<void()>& work);

}  // namespace kalibri::cli

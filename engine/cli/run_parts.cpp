#include "engine/cli/run_parts.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <ostream>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace fs = std::filesystem;

DefaultPrompts choose_prompts(const std::string& tokens, const std::vector<std::string>& prompts,
                              const dump::Reader* reference, const std::string& checkpoint,
                              const model::ModelInfo& info, std::ostream* notes) {
  DefaultPrompts chosen;
  if (!tokens.empty()) {
    chosen = {read_token_file(tokens), "--tokens"};
  } else if (!prompts.empty()) {
    chosen = {read_text_prompts(prompts, checkpoint, info, notes), "--prompts"};
  } else if (reference != nullptr) {
    chosen.source = "--reference";
    for (const dump::PromptInfo& prompt : reference->prompts())
      chosen.prompts.push_back({prompt.name, prompt.tokens, prompt.text_sha256});
  } else {
    chosen = default_prompts(checkpoint, info, notes);
  }
  check_prompts(chosen.prompts, info);
  return chosen;
}

std::unique_ptr<const dump::Reader> open_reference(const std::string& path) {
  auto reference = std::make_unique<const dump::Reader>(path);
  if (reference->header().mode != "chained") {
    throw Error(ErrorCode::input,
                fmt::format("{}: mode {}, expected chained: --reference is the reference's own fp32 run", path,
                            reference->header().mode));
  }
  return reference;
}

std::string checkpoint_name(const std::string& directory) { return fs::canonical(directory).filename().string(); }

nlohmann::json well_formed(const nlohmann::json& value) {
  return nlohmann::json::parse(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void step(std::ostream* progress, const std::string& name, const std::function<void()>& work) {
  if (progress != nullptr) *progress << name << " ..." << std::flush;
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (progress != nullptr) *progress << fmt::format(" {:.1f} s\n", seconds.count());
}

}  // namespace kalibri::cli

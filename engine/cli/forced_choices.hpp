// Experts and blocks as another dump has them, for a model that is to follow that run's choices. Joins the engine
// (which knows no dumps) and oracle/dump (which knows no model).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cli/prompts.hpp"
#include "engine/model/session.hpp"
#include "engine/runtime/choices.hpp"
#include "oracle/dump/reader.hpp"

namespace kalibri::cli {

/// The choices of one prompt.
class PromptChoices final : public runtime::ForcedChoices {
 public:
  [[nodiscard]] std::span<const std::int32_t> experts(std::int64_t layer, std::int64_t pos) const override;
  /// Throws Error(input) for a layer of which the dump has no selected blocks, when it gives those of others.
  [[nodiscard]] Blocks blocks(std::int64_t layer, std::int64_t pos) const override;

 private:
  friend class DumpChoices;
  struct Rows {
    std::int64_t width = 0;
    std::vector<std::int32_t> values;    // [T, width]
    std::vector<std::int32_t> n_values;  // by row: those before the padding
  };
  std::filesystem::path selection_;
  std::map<std::int64_t, Rows> experts_, blocks_;  // by layer
};

/// The dumps that give the choices, opened and checked against prompts and model.
class DumpChoices {
 public:
  /// An empty path: the model chooses. Throws Error(usage) when the model selects no blocks, Error(input) for a dump
  /// with other prompts or without the tensors, and for choices that the model cannot follow.
  DumpChoices(const std::filesystem::path& selection, const std::filesystem::path& experts,
              const std::vector<Prompt>& prompts, const model::ModelInfo& info);

  /// Null when the model chooses everything.
  [[nodiscard]] const PromptChoices* of(const Prompt& prompt) const;

 private:
  void read_experts(const dump::Reader& dump, const Prompt& prompt, const model::ModelInfo& info);
  void read_blocks(const dump::Reader& dump, const Prompt& prompt, const model::ModelInfo& info);

  std::map<std::string, PromptChoices> prompts_;
};

/// Throws Error(input) unless `dump` has `prompt` with the same tokens.
const dump::PromptInfo& require_prompt(const dump::Reader& dump, const Prompt& prompt);

}  // namespace kalibri::cli

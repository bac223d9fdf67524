#include "engine/cli/forced_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

[[noreturn]] void refuse(const dump::Reader& dump, const Prompt& prompt, const std::string& text) {
  throw Error(ErrorCode::input, fmt::format("{}: prompt '{}': {}", dump.path().string(), prompt.name, text));
}

/// A layer's [T, width] choices as they stand in the dump; nothing when it has none.
std::optional<std::vector<std::int32_t>> read_rows(const dump::Reader& dump, const Prompt& prompt, std::int64_t layer,
                                                   const char* name, std::int64_t& width) {
  const std::string path = dump::layer_path(layer, name);
  const auto info = dump.find(prompt.name, path);
  if (!info.has_value()) return std::nullopt;
  width = info->shape.at(1);
  const std::vector<std::int64_t> values = dump.read_i64(prompt.name, path, 0, info->shape[0]);
  std::vector<std::int32_t> ids;
  for (const std::int64_t value : values) {
    if (value < INT32_MIN || value > INT32_MAX) refuse(dump, prompt, fmt::format("{}: {} is no id", path, value));
    ids.push_back(static_cast<std::int32_t>(value));
  }
  return ids;
}

}  // namespace

const dump::PromptInfo& require_prompt(const dump::Reader& dump, const Prompt& prompt) {
  const dump::PromptInfo* other = dump.find_prompt(prompt.name);
  if (other == nullptr || other->tokens != prompt.tokens) {
    refuse(dump, prompt, "is missing or has other tokens; dump the same prompts there");
  }
  return *other;
}

std::span<const std::int32_t> PromptChoices::experts(std::int64_t layer, std::int64_t pos) const {
  const auto found = experts_.find(layer);
  if (found == experts_.end()) return {};
  const auto width = static_cast<std::size_t>(found->second.width);
  return std::span(found->second.values).subspan(static_cast<std::size_t>(pos) * width, width);
}

runtime::ForcedChoices::Blocks PromptChoices::blocks(std::int64_t layer, std::int64_t pos) const {
  if (blocks_.empty()) return {};
  const auto found = blocks_.find(layer);
  if (found == blocks_.end()) {
    throw Error(ErrorCode::input,
                fmt::format("{}: layer {} has no selected_blocks; dump it with --taps selected_blocks",
                            selection_.string(), layer));
  }
  const auto row = static_cast<std::size_t>(pos);
  const Rows& rows = found->second;
  return {true, std::span(rows.values)
                    .subspan(row * static_cast<std::size_t>(rows.width), static_cast<std::size_t>(rows.n_values[row]))};
}

DumpChoices::DumpChoices(const std::filesystem::path& selection, const std::filesystem::path& experts,
                         const std::vector<Prompt>& prompts, const model::ModelInfo& info) {
  if (!selection.empty() && info.chooses_from == 0) {
    throw Error(ErrorCode::usage, fmt::format("--selection: a {} model selects no blocks", info.model_type));
  }
  if (!experts.empty()) {
    const dump::Reader dump(experts);
    for (const Prompt& prompt : prompts) read_experts(dump, prompt, info);
  }
  if (!selection.empty()) {
    const dump::Reader dump(selection);
    for (const Prompt& prompt : prompts) read_blocks(dump, prompt, info);
  }
}

const PromptChoices* DumpChoices::of(const Prompt& prompt) const {
  const auto found = prompts_.find(prompt.name);
  return found == prompts_.end() ? nullptr : &found->second;
}

void DumpChoices::read_experts(const dump::Reader& dump, const Prompt& prompt, const model::ModelInfo& info) {
  require_prompt(dump, prompt);
  for (std::int64_t layer = 0; layer < info.n_layers; ++layer) {
    PromptChoices::Rows rows;
    auto ids = read_rows(dump, prompt, layer, "expert_ids", rows.width);
    if (!ids.has_value()) refuse(dump, prompt, fmt::format("layer {} has no expert_ids", layer));
    if (rows.width != info.top_k) {
      refuse(dump, prompt, fmt::format("layer {}: {} experts a token, expected {}", layer, rows.width, info.top_k));
    }
    for (auto row = ids->begin(); row != ids->end(); row += rows.width) {
      const std::set<std::int32_t> chosen(row, row + rows.width);
      if (static_cast<std::int64_t>(chosen.size()) == rows.width && *chosen.begin() >= 0 &&
          *chosen.rbegin() < info.n_experts) {
        continue;
      }
      refuse(dump, prompt,
             fmt::format("layer {}, position {}: expected different experts from 0 to {}", layer,
                         (row - ids->begin()) / rows.width, info.n_experts - 1));
    }
    rows.values = std::move(*ids);
    prompts_[prompt.name].experts_.emplace(layer, std::move(rows));
  }
}

void DumpChoices::read_blocks(const dump::Reader& dump, const Prompt& prompt, const model::ModelInfo& info) {
  const dump::PromptInfo& other = require_prompt(dump, prompt);
  const std::int64_t block_size = info.chooses_from - info.window;
  PromptChoices& choices = prompts_[prompt.name];
  choices.selection_ = dump.path();
  for (const std::int64_t layer : other.layers) {
    PromptChoices::Rows rows;
    auto ids = read_rows(dump, prompt, layer, "selected_blocks", rows.width);
    if (!ids.has_value()) continue;
    for (auto row = ids->begin(); row != ids->end(); row += rows.width) {
      const std::int64_t pos = (row - ids->begin()) / rows.width;
      const auto end = std::find(row, row + rows.width, -1);  // padding follows
      const bool is_rising = std::adjacent_find(row, end, std::greater_equal<>()) == end;
      const bool is_visible = row == end || (*row >= 0 && *(end - 1) < (pos + 1) / block_size);
      const bool sees_something = row != end || (pos + 1) % block_size != 0;
      if (!is_rising || !is_visible || !sees_something ||
          std::count(end, row + rows.width, -1) != row + rows.width - end) {
        refuse(dump, prompt,
               fmt::format("layer {}, position {}: selected_blocks are no rising list of complete blocks of {} tokens",
                           layer, pos, block_size));
      }
      rows.n_values.push_back(static_cast<std::int32_t>(end - row));
    }
    rows.values = std::move(*ids);
    choices.blocks_.emplace(layer, std::move(rows));
  }
  if (choices.blocks_.empty()) {
    refuse(dump, prompt, "no layer has selected_blocks; dump them with --taps selected_blocks");
  }
}

}  // namespace kalibri::cli

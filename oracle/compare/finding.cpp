#include "oracle/compare/finding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kalibri::oracle {

namespace {

constexpr std::array<std::string_view, 5> kStatusNames = {"not_applicable", "held", "not_run", "mistrusted",
                                                          "fell_short"};

template <typename T>
void put(nlohmann::json& object, const char* key, const std::optional<T>& value) {
  if (value) object[key] = *value;
}

}  // namespace

std::string_view text(Status status) { return kStatusNames.at(static_cast<std::size_t>(status)); }

Verdict judge(const std::vector<Finding>& findings) {
  std::array<std::size_t, kStatusNames.size()> counts{};
  Status worst = Status::not_applicable;
  for (const Finding& finding : findings) {
    ++counts.at(static_cast<std::size_t>(finding.status));
    worst = std::max(worst, finding.status);
  }
  Verdict verdict;
  verdict.status = worst == Status::not_applicable ? Status::mistrusted : worst;
  verdict.exit_status = verdict.status == Status::held ? 0 : 1;
  for (std::size_t i = counts.size(); i-- > 0;) {
    if (counts[i] == 0) continue;
    if (!verdict.text.empty()) verdict.text += ", ";
    std::string words(kStatusNames[i]);
    std::replace(words.begin(), words.end(), '_', ' ');
    verdict.text += fmt::format("{} {}", counts[i], words);
  }
  if (verdict.text.empty()) verdict.text = "no finding";
  return verdict;
}

nlohmann::json number(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

nlohmann::json to_json(const Where& where) {
  nlohmann::json object = nlohmann::json::object();
  put(object, "layer", where.layer);
  put(object, "position", where.position);
  put(object, "column", where.column);
  if (!where.prompt.empty()) object["prompt"] = where.prompt;
  if (!where.tensor.empty()) object["tensor"] = where.tensor;
  return object;
}

nlohmann::json to_json(const Finding& finding) {
  return {{"id", finding.id},
          {"check", finding.check},
          {"status", text(finding.status)},
          {"value", number(finding.value)},
          {"bound", number(finding.bound)},
          {"floor", number(finding.floor)},
          {"where", to_json(finding.where)},
          {"text", finding.text}};
}

nlohmann::json to_json(const Verdict& verdict) {
  return {{"status", text(verdict.status)}, {"exit_status", verdict.exit_status}, {"text", verdict.text}};
}

std::string text(const Where& where) {
  std::string result;
  const auto add = [&result](std::string part) {
    if (!result.empty()) result += ", ";
    result += part;
  };
  if (where.layer) add(fmt::format("layer {}", *where.layer));
  if (!where.prompt.empty()) add("prompt " + where.prompt);
  if (where.position) add(fmt::format("position {}", *where.position));
  if (where.column) add(fmt::format("column {}", *where.column));
  if (!where.tensor.empty()) result += (result.empty() ? "" : " of ") + where.tensor;
  return result;
}

}  // namespace kalibri::oracle

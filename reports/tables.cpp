#include "reports/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reports/cells.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

constexpr std::array<const char*, 5> kByWeight = {"fell_short", "mistrusted", "not_run", "held", "not_applicable"};

std::size_t weight(const json& finding) {
  return static_cast<std::size_t>(std::find(kByWeight.begin(), kByWeight.end(), finding.at("status")) -
                                  kByWeight.begin());
}

void add(std::vector<Table>& all, const char* check, const char* title, Table table) {
  if (table.rows.empty()) return;
  table.check = check;
  table.title = title;
  all.push_back(std::move(table));
}

}  // namespace

std::string status_words(const std::string& status) {
  std::string words = status;
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::vector<json> sorted_findings(const json& report) {
  auto findings = report.at("findings").get<std::vector<json>>();
  std::stable_sort(findings.begin(), findings.end(),
                   [](const json& a, const json& b) { return weight(a) < weight(b); });
  return findings;
}

Table findings_table(const json& report) {
  Rows rows = sorted_findings(report);
  for (json& row : rows) {
    row["place"] = place_text(row.at("where"));
    const json& bound = row.at("bound");
    const bool has_share = row.at("value").is_number() && bound.is_number() && bound > 0;
    row["of_bound"] = has_share ? json(nearness(row.at("value"), bound)) : json();
  }
  Table table = make_table({{"status", "status", Kind::status},
                            {"finding", "id", Kind::name},
                            {"value", "value", Kind::number},
                            {"bound", "bound", Kind::number},
                            {"of bound", "of_bound", Kind::of_bound},
                            {"worst at", "place", Kind::name}},
                           rows);
  table.title = "Findings";
  return table;
}

std::string worst_of(const json& report, const std::string& check) {
  const json* worst = nullptr;
  const auto key = [](const json& f) {
    return std::pair(-static_cast<int>(weight(f)), nearness(f.at("value"), f.at("bound")));
  };
  for (const json& finding : report.at("findings")) {
    if (finding.at("check") != check || finding.at("value").is_null() || finding.at("bound").is_null()) continue;
    if (worst == nullptr || key(finding) > key(*worst)) worst = &finding;
  }
  if (worst == nullptr) return "";
  const std::string place = place_text(worst->at("where"));
  return fmt::format("worst: {} {} (bound {}){}{}", worst->at("id").get<std::string>(), number_text(worst->at("value")),
                     number_text(worst->at("bound")), place.empty() ? "" : " at ", place);
}

std::vector<Table> tables(const json& report, Detail detail) {
  const json& comparisons = report.at("comparisons");
  std::vector<Table> all;
  if (comparisons.contains("teacher_forced")) {
    const json& comparison = comparisons.at("teacher_forced");
    add(all, "teacher-forced", "Layer by layer, teacher-forced", layer_table(comparison, detail, true));
    add(all, "teacher-forced", "Selected blocks, teacher-forced", blocks_table(comparison, detail));
    add(all, "teacher-forced", "Other tensors, teacher-forced", tensor_table(comparison));
    add(all, "teacher-forced", "Head, teacher-forced", logits_table(comparison));
  }
  if (comparisons.contains("chained")) {
    add(all, "chained", "Layer by layer, chained", layer_table(comparisons.at("chained"), detail, false));
    add(all, "chained", "Selected blocks, chained", blocks_table(comparisons.at("chained"), detail));
    add(all, "chained", "Logits, chained", logits_table(comparisons.at("chained")));
  }
  if (comparisons.contains("end_to_end")) {
    add(all, "end-to-end", "End to end", end_to_end_table(comparisons.at("end_to_end")));
  }
  if (comparisons.contains("bands")) {
    add(all, "bands", "Position bands", bands_table(comparisons.at("bands"), detail));
    add(all, "bands", "Residual maxima", residual_max_table(comparisons.at("bands"), detail));
  }
  if (comparisons.contains("decode")) {
    add(all, "decode", "Decode against prefill", decode_table(comparisons.at("decode"), detail));
  }
  return all;
}

std::string heading(const json& report) {
  const json& dumps = report.at("dumps");  // the last one is a candidate's
  const std::string precision = dumps.empty() ? "" : dumps.back().at("precision").get<std::string>();
  const json& program = report.at("program");
  const json& checkpoint = report.at("checkpoint");
  return fmt::format("{} ({}), precision {}; {} {} on {}", checkpoint.at("name").get<std::string>(),
                     checkpoint.at("model_type").get<std::string>(), precision, program.at("name").get<std::string>(),
                     program.at("version").get<std::string>(), program.at("isa").get<std::string>());
}

}  // namespace kalibri::reports

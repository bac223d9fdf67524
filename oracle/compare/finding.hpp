// A finding: what one check says about the numbers it saw, with the place of the worst. Differing numbers are findings,
// never exceptions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kalibri::oracle {

/// By rising weight: of several, the last one decides.
enum class Status : std::uint8_t { not_applicable, held, not_run, mistrusted, fell_short };

std::string_view text(Status status);

/// Where a number stands in a dump; what does not apply is absent.
struct Where {
  std::optional<std::int64_t> layer;
  std::string prompt;
  std::optional<std::int64_t> position;
  std::optional<std::int64_t> column;
  std::string tensor;
};

struct Finding {
  std::string id;     // unique in a report: "teacher-forced/residual"
  std::string check;  // the table that it belongs to: "teacher-forced"
  Status status = Status::not_run;
  std::optional<double> value, bound, floor;
  Where where;
  std::string text;
};

struct Verdict {
  Status status = Status::mistrusted;
  int exit_status = 1;  // 0 held, 1 otherwise
  std::string text;
};

/// The heaviest status among the findings. When nothing held and nothing was wrong, nothing was shown: mistrusted.
Verdict judge(const std::vector<Finding>& findings);

/// null for what is absent or not finite (JSON has no NaN; a non-finite value has its own finding with its position).
nlohmann::json number(std::optional<double> value);
nlohmann::json to_json(const Where& where);
nlohmann::json to_json(const Finding& finding);
nlohmann::json to_json(const Verdict& verdict);

/// "layer 3, prompt de_long, position 17, column 4 of residual": the parts that are there.
std::string text(const Where& where);

}  // namespace kalibri::oracle

#include "oracle/verdict/judge_logits.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "oracle/verdict/rules.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

namespace {

/// One prompt's value of one measure.
struct Value {
  double value = 0;
  std::string prompt;
  std::int64_t position = -1;
};

/// The worst prompt of one measure against one bound.
class Measure {
 public:
  Measure(std::string check, std::string name, std::optional<double> floor, double multiple)
      : check_(std::move(check)), name_(std::move(name)), floor_(floor), multiple_(multiple) {
    if (floor) bound_ = multiple * *floor;
  }

  /// The status of this prompt.
  Status add(const Value& value) {
    if (worst_.position < 0 || std::isnan(value.value) || value.value > worst_.value) worst_ = value;
    if (!bound_) return Status::mistrusted;
    return value.value <= *bound_ ? Status::held : Status::fell_short;  // NaN falls short
  }

  [[nodiscard]] Finding finding() const {
    Finding finding{check_ + "/" + name_,   check_, Status::not_applicable, {}, bound_, floor_, {},
                    "no position is judged"};
    if (worst_.position < 0) return finding;
    finding.value = worst_.value;
    finding.where = {{}, worst_.prompt, worst_.position, {}, "logits"};
    if (!bound_) {
      finding.status = Status::mistrusted;
      finding.text = fmt::format("{} {:.2e}: no floor was measured for it: run the reference in fp64 as well", name_,
                                 worst_.value);
      return finding;
    }
    finding.status = worst_.value <= *bound_ ? Status::held : Status::fell_short;
    finding.text =
        fmt::format("{} {:.2e}, {} x the floor of {:.2e} is allowed", name_, worst_.value, multiple_, *floor_);
    return finding;
  }

 private:
  std::string check_, name_;
  std::optional<double> floor_, bound_;
  double multiple_;
  Value worst_;
};

/// First tokens that differ: ties within the bound of the logits are excused, counted, and the largest gap is told.
class TopTies {
 public:
  TopTies(std::string check, std::string name, std::optional<double> bound)
      : check_(std::move(check)), name_(std::move(name)), bound_(bound) {}

  Status add(bool differs, double gap, const std::string& prompt, std::int64_t position) {
    ++n_positions_;
    if (!differs) return Status::held;
    if (!bound_) return Status::mistrusted;
    if (gap <= *bound_) {
      ++n_excused_;
      largest_excused_ = std::max(largest_excused_, gap);
      return Status::held;
    }
    if (n_faults_++ == 0) first_fault_ = {gap, prompt, position};
    return Status::fell_short;
  }

  [[nodiscard]] Finding finding() const {
    Finding finding{check_ + "/" + name_, check_, Status::not_applicable, {}, 0, {}, {}, "no position is judged"};
    if (n_positions_ == 0) return finding;
    finding.value = static_cast<double>(n_faults_);
    finding.status = !bound_ ? Status::mistrusted : n_faults_ == 0 ? Status::held : Status::fell_short;
    finding.text = fmt::format("{} of {} positions differ beyond a tie", n_faults_, n_positions_);
    if (!bound_) finding.text += "; no floor tells what a tie is";
    if (n_excused_ > 0)
      finding.text += fmt::format("; {} ties excused, largest gap {:.2e}", n_excused_, largest_excused_);
    if (n_faults_ > 0) finding.where = {{}, first_fault_.prompt, first_fault_.position, {}, "logits"};
    return finding;
  }

 private:
  std::string check_, name_;
  std::optional<double> bound_;
  std::int64_t n_positions_ = 0, n_excused_ = 0, n_faults_ = 0;
  double largest_excused_ = 0;
  Value first_fault_;
};

Value worst_position(const PromptDifference& prompt, std::int64_t end,
                     const std::function<double(const LogitsRow&)>& measure) {
  Value worst{0, prompt.prompt, -1};
  for (const LogitsRow& row : prompt.logits->rows) {
    if (row.difference.position >= end || std::isnan(worst.value)) continue;
    const double value = measure(row);
    if (worst.position < 0 || value > worst.value || std::isnan(value))
      worst = {value, prompt.prompt, row.difference.position};
  }
  return worst;
}

nlohmann::json logits_row(const PromptDifference& prompt, std::int64_t n_judged, Status status) {
  nlohmann::json row = to_json(prompt.logits->metrics);
  const auto hidden = prompt.tensors.find("final_norm");
  row["prompt"] = prompt.prompt;
  row["T"] = prompt.n_tokens;
  row["hidden_rel"] = hidden == prompt.tensors.end() ? nlohmann::json() : number(hidden->second.metrics.rel);
  row["judged_positions"] = n_judged;
  row["status"] = text(status);
  return row;
}

using Level = std::optional<double>;

Judged judge_head(const DumpDifference& difference, const Floor* floor) {
  Judged judged;
  Measure rel(difference.check, "logits", floor && floor->logits ? Level(floor->logits->rel_token_max) : Level(),
              kKappa);
  for (const PromptDifference& prompt : difference.prompts) {
    if (!prompt.logits) continue;
    const Status status =
        rel.add(worst_position(prompt, prompt.n_tokens, [](const LogitsRow& row) { return row.rel; }));
    judged.rows.push_back(logits_row(prompt, std::ssize(prompt.logits->rows), status));
  }
  judged.findings.push_back(rel.finding());
  return judged;
}

Judged judge_chained(const DumpDifference& difference, const Floor* floor) {
  const LogitsFloor* level = floor && floor->logits ? &*floor->logits : nullptr;
  const std::string& check = difference.check;
  Measure kl_mean(check, "kl_mean", level ? Level(level->kl_mean) : Level(), kLambda);
  Measure kl_max(check, "kl_max", level ? Level(level->kl_max) : Level(), kLambda);
  Measure max_abs(check, "max_abs_logit", level ? Level(level->max_abs_logit) : Level(), kKappa);
  const Level tie = level ? Level(kKappa * level->max_abs_logit) : Level();
  TopTies top1(check, "top1", tie), top5(check, "top5", tie);
  Judged judged;
  std::int64_t n_positions = 0, n_judged = 0;
  for (const PromptDifference& prompt : difference.prompts) {
    if (!prompt.logits) continue;
    const std::int64_t end = first_differing_token(prompt);
    const LogitMetrics metrics = summarise_positions(*prompt.logits, 0, end);
    n_positions += std::ssize(prompt.logits->rows);
    n_judged += metrics.n_positions;
    Status status = Status::not_applicable;
    if (metrics.n_positions > 0) {
      const Value worst_kl = worst_position(prompt, end, [](const LogitsRow& row) { return row.difference.kl; });
      status = std::max(
          {status, kl_mean.add({*metrics.kl_mean, prompt.prompt, worst_kl.position}), kl_max.add(worst_kl),
           max_abs.add(worst_position(prompt, end, [](const LogitsRow& row) { return row.difference.max_abs; }))});
    }
    for (const LogitsRow& row : prompt.logits->rows) {
      const std::int64_t position = row.difference.position;
      if (position >= end) continue;
      status = std::max({status, top1.add(!row.difference.top1_same, row.top1_gap, prompt.prompt, position),
                         top5.add(row.difference.top5_share != 1, row.top5_gap, prompt.prompt, position)});
    }
    judged.rows.push_back(logits_row(prompt, metrics.n_positions, status));
  }
  for (const Finding& finding :
       {kl_mean.finding(), kl_max.finding(), max_abs.finding(), top1.finding(), top5.finding()}) {
    judged.findings.push_back(finding);
  }
  Finding positions{check + "/positions", check, Status::not_applicable, {}, {}, {}, {}, "neither dump holds logits"};
  if (n_positions > 0) {
    positions.value = static_cast<double>(n_judged);
    positions.status = n_judged == 0 ? Status::mistrusted : Status::held;
    positions.text = fmt::format(
        "{} of {} positions are judged; the others come at or after a token with other experts", n_judged, n_positions);
  }
  judged.findings.push_back(positions);
  return judged;
}

}  // namespace

Judged judge_logits(const DumpDifference& difference, const Floor* floor, RunMode mode) {
  return mode == RunMode::chained ? judge_chained(difference, floor) : judge_head(difference, floor);
}

nlohmann::json to_json(const LogitMetrics& metrics) {
  return {{"top1", number(metrics.top1)},
          {"top5", number(metrics.top5)},
          {"kl_mean", number(metrics.kl_mean)},
          {"kl_p95", number(metrics.kl_p95)},
          {"kl_max", number(metrics.kl_max)},
          {"max_abs_logit", number(metrics.max_abs_logit)},
          {"worst_kl_pos", metrics.worst_kl_pos ? nlohmann::json(*metrics.worst_kl_pos) : nlohmann::json()}};
}

}  // namespace kalibri::oracle

#include "oracle/verdict/judge_logits.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "oracle/verdict/measure.hpp"
#include "oracle/verdict/rules.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

namespace {

using Level = std::optional<double>;

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
    if (n_faults_++ == 0) first_fault_ = {{}, prompt, position, {}, "logits"};
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
    if (n_faults_ > 0) finding.where = first_fault_;
    return finding;
  }

 private:
  std::string check_, name_;
  std::optional<double> bound_;
  std::int64_t n_positions_ = 0, n_excused_ = 0, n_faults_ = 0;
  double largest_excused_ = 0;
  Where first_fault_;
};

/// The row before `end` with the largest measure; NaN counts as largest. Null when there is none.
const LogitsRow* worst_row_before(const PromptDifference& prompt, std::int64_t end,
                                  const std::function<double(const LogitsRow&)>& measure) {
  const LogitsRow* worst = nullptr;
  for (const LogitsRow& row : prompt.logits->rows) {
    if (row.difference.position >= end || (worst != nullptr && std::isnan(measure(*worst)))) continue;
    if (worst == nullptr || measure(row) > measure(*worst) || std::isnan(measure(row))) worst = &row;
  }
  return worst;
}

Where place(const PromptDifference& prompt, const LogitsRow& row) {
  return {{}, prompt.prompt, row.difference.position, {}, "logits"};
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

Judged judge_head(const DumpDifference& difference, const Floor* floor) {
  const Level level = floor && floor->logits ? Level(floor->logits->rel_token_max) : Level();
  const auto rel = [](const LogitsRow& row) { return row.rel; };
  Measure logits(difference.check, "logits", kKappa);
  Judged judged;
  for (const PromptDifference& prompt : difference.prompts) {
    if (!prompt.logits) continue;
    const LogitsRow& worst = *worst_row_before(prompt, prompt.n_tokens, rel);
    const Status status = logits.add(worst.rel, level, place(prompt, worst), "rel_token_max");
    judged.rows.push_back(logits_row(prompt, std::ssize(prompt.logits->rows), status));
  }
  judged.findings.push_back(logits.finding());
  return judged;
}

/// Everything that is judged of a chained run's logits.
class ChainedLogits {
 public:
  ChainedLogits(const std::string& check, const LogitsFloor* floor)
      : check_(check),
        floor_(floor),
        kl_mean_(check, "kl_mean", kLambda),
        kl_max_(check, "kl_max", kLambda),
        max_abs_(check, "max_abs_logit", kKappa),
        top1_(check, "top1", floor ? Level(kKappa * floor->max_abs_logit) : Level()),
        top5_(check, "top5", floor ? Level(kKappa * floor->max_abs_logit) : Level()) {}

  /// The prompt's row.
  nlohmann::json add(const PromptDifference& prompt) {
    const std::int64_t end = first_differing_token(prompt);
    const LogitMetrics metrics = summarise_positions(*prompt.logits, 0, end);
    n_positions_ += std::ssize(prompt.logits->rows);
    n_judged_ += metrics.n_positions;
    Status status = Status::not_applicable;
    if (metrics.n_positions > 0) {
      const LogitsRow& kl = *worst_row_before(prompt, end, [](const LogitsRow& row) { return row.difference.kl; });
      const LogitsRow& far =
          *worst_row_before(prompt, end, [](const LogitsRow& row) { return row.difference.max_abs; });
      status = std::max(
          {status, kl_mean_.add(*metrics.kl_mean, mean_floor(metrics.n_positions), place(prompt, kl)),
           kl_max_.add(*metrics.kl_max, floor_ ? Level(floor_->kl_max) : Level(), place(prompt, kl)),
           max_abs_.add(*metrics.max_abs_logit, floor_ ? Level(floor_->max_abs_logit) : Level(), place(prompt, far))});
    }
    for (const LogitsRow& row : prompt.logits->rows) {
      const std::int64_t position = row.difference.position;
      if (position >= end) continue;
      status = std::max({status, top1_.add(!row.difference.top1_same, row.top1_gap, prompt.prompt, position),
                         top5_.add(row.difference.top5_share != 1, row.top5_gap, prompt.prompt, position)});
    }
    return logits_row(prompt, metrics.n_positions, status);
  }

  [[nodiscard]] std::vector<Finding> findings() const {
    Finding positions{check_ + "/positions",      check_, Status::not_applicable, {}, {}, {}, {},
                      "neither dump holds logits"};
    if (n_positions_ > 0) {
      positions.value = static_cast<double>(n_judged_);
      positions.status = n_judged_ == 0 ? Status::mistrusted : Status::held;
      positions.text =
          fmt::format("{} of {} positions are judged; the others come at or after a token with other experts",
                      n_judged_, n_positions_);
    }
    return {kl_mean_.finding(), kl_max_.finding(), max_abs_.finding(), top1_.finding(), top5_.finding(), positions};
  }

 private:
  /// A mean over n positions holds at least its largest member / n, and that one may be as large as kl_max allows.
  /// Where the precision rounds, one number on the other side of a rounding may move all positions that come after.
  [[nodiscard]] Level mean_floor(std::int64_t n) const {
    if (floor_ == nullptr) return std::nullopt;
    return std::max({floor_->kl_mean, floor_->kl_unit, floor_->kl_max / static_cast<double>(n)});
  }

  std::string check_;
  const LogitsFloor* floor_;
  Measure kl_mean_, kl_max_, max_abs_;
  TopTies top1_, top5_;
  std::int64_t n_positions_ = 0, n_judged_ = 0;
};

Judged judge_chained(const DumpDifference& difference, const Floor* floor) {
  ChainedLogits logits(difference.check, floor && floor->logits ? &*floor->logits : nullptr);
  Judged judged;
  for (const PromptDifference& prompt : difference.prompts) {
    if (prompt.logits) judged.rows.push_back(logits.add(prompt));
  }
  judged.findings = logits.findings();
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

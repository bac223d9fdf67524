#include "oracle/verdict/judge_decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "oracle/compare/bands.hpp"
#include "oracle/verdict/rules.hpp"
#include "oracle/verdict/ties.hpp"

namespace kalibri::oracle {

namespace {

using nlohmann::json;

/// One schedule of one prompt.
struct DecodeRow {
  const LogitsDifference& logits;
  std::int64_t n_differing = 0;       // rows with other bits
  std::int64_t first_differing = -1;  // the first one's position
  Status status = Status::held;
};

DecodeRow judge_row(const LogitsDifference& logits, const DecodeRule& rule) {
  DecodeRow judged{logits};
  for (const LogitsRow& row : logits.rows) {
    if (row.bits_differ && judged.n_differing++ == 0) judged.first_differing = row.difference.position;
  }
  if (rule.must_equal) {
    judged.status = judged.n_differing == 0 && !logits.metrics.not_finite ? Status::held : Status::fell_short;
  } else if (rule.floor == nullptr || !rule.floor->logits) {
    judged.status = Status::mistrusted;
  } else {
    judged.status = *logits.metrics.kl_max <= kLambda * rule.floor->logits->kl_max ? Status::held : Status::fell_short;
  }
  return judged;
}

/// One schedule of all prompts as one finding.
class Schedules {
 public:
  Schedules(const std::string& name, const DecodeRule& rule) : rule_(rule) {
    finding_ = {fmt::format("decode/{}", name),          "decode", Status::not_run, {}, {}, {}, {},
                "no position in common with the prefill"};
  }

  void add(const std::string& prompt, const DecodeRow& row) {
    const LogitMetrics& metrics = row.logits.metrics;
    const double value = rule_.must_equal ? static_cast<double>(row.n_differing) : *metrics.kl_max;
    const bool is_worse =
        n_rows_ == 0 || row.status > finding_.status || (row.status == finding_.status && value > *finding_.value);
    n_rows_ += std::ssize(row.logits.rows);
    n_differing_ += row.n_differing;
    largest_ = std::max(largest_, *metrics.max_abs_logit);
    if (!is_worse) return;
    finding_.status = row.status;
    finding_.value = value;
    finding_.where.prompt = prompt;
    finding_.where.position = rule_.must_equal ? row.first_differing : *metrics.worst_kl_pos;
    if (*finding_.where.position < 0) finding_.where = {};
  }

  [[nodiscard]] Finding finding() const {
    Finding finding = finding_;
    if (n_rows_ == 0) return finding;
    finding.text =
        fmt::format("{} of {} rows differ in their bits, by {:.2e} at most", n_differing_, n_rows_, largest_);
    if (rule_.must_equal) {
      finding.value = static_cast<double>(n_differing_);
      finding.bound = 0;
      if (finding.status == Status::fell_short && n_differing_ == 0) finding.text += "; values are not finite";
    } else if (rule_.floor != nullptr && rule_.floor->logits) {
      finding.floor = rule_.floor->logits->kl_max;
      finding.bound = kLambda * *finding.floor;
      finding.text +=
          fmt::format("; kl_max {:.2e}, {} x the floor of {:.2e} is allowed", *finding.value, kLambda, *finding.floor);
    } else {
      finding.text += fmt::format("; kl_max {:.2e}: no floor was measured for it", *finding.value);
    }
    return finding;
  }

 private:
  DecodeRule rule_;
  Finding finding_;
  std::int64_t n_rows_ = 0, n_differing_ = 0;
  double largest_ = 0;
};

json decode_row(const dump::PromptInfo& prompt, const std::string& schedule, std::int64_t n_prefilled,
                const DecodeRow& judged) {
  const LogitMetrics& metrics = judged.logits.metrics;
  return {{"prompt", prompt.name},
          {"T", prompt.tokens.size()},
          {"schedule", schedule},
          {"n_prefilled", n_prefilled},
          {"first_position", judged.logits.rows.front().difference.position},
          {"n_rows", judged.logits.rows.size()},
          {"max_abs_logit", number(metrics.max_abs_logit)},
          {"rows_differing", judged.n_differing},
          {"first_differing_position", judged.n_differing > 0 ? json(judged.first_differing) : json()},
          {"kl_mean", number(metrics.kl_mean)},
          {"kl_max", number(metrics.kl_max)},
          {"top1", number(metrics.top1)},
          {"reference_logit_std", number(judged.logits.reference_std)},
          {"reference_logit_max", number(judged.logits.reference_max)},
          {"status", text(judged.status)}};
}

}  // namespace

Judged judge_decode(const dump::Reader& prefill, const dump::Reader* decoded, const dump::Reader* repeated,
                    const DecodeRule& rule) {
  Judged judged;
  std::map<std::string, Schedules> schedules;
  const auto compare = [&](const dump::PromptInfo& prompt, const std::string& schedule, std::int64_t n_prefilled,
                           const LogitsRef& other) {
    Schedules& all = schedules.try_emplace(schedule, schedule, rule).first->second;
    const auto logits = compare_logit_rows(prefill_logits(prefill, prompt), other);
    if (!logits) return;
    const DecodeRow row = judge_row(*logits, rule);
    all.add(prompt.name, row);
    judged.rows.push_back(decode_row(prompt, schedule, n_prefilled, row));
  };
  for (const dump::PromptInfo& prompt : prefill.prompts()) {
    if (const dump::PromptInfo* other = decoded == nullptr ? nullptr : decoded->find_prompt(prompt.name)) {
      refuse_other_tokens(prefill, prompt, *decoded, *other);
      for (const dump::Schedule& schedule : other->schedules) {
        compare(prompt, schedule.name, schedule.n_prefilled, decode_logits(*decoded, *other, schedule));
      }
    }
    if (const dump::PromptInfo* other = repeated == nullptr ? nullptr : repeated->find_prompt(prompt.name)) {
      refuse_other_tokens(prefill, prompt, *repeated, *other);
      compare(prompt, "repeat", static_cast<std::int64_t>(prompt.tokens.size()), prefill_logits(*repeated, *other));
    }
  }
  for (const dump::Reader* other : {decoded, repeated}) {
    if (other == nullptr) continue;
    Finding identity = compare_identity(prefill, *other, "decode");
    identity.id = other == decoded ? "decode/identity" : "decode/repeat-identity";
    judged.findings.push_back(std::move(identity));
  }
  for (const auto& entry : schedules) judged.findings.push_back(entry.second.finding());
  if (schedules.empty())
    judged.findings.push_back(
        {"decode/complete", "decode", Status::not_run, {}, {}, {}, {}, "no decode schedule in common"});
  return judged;
}

}  // namespace kalibri::oracle

#include "oracle/verdict/judge_choices.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kalibri::oracle {

namespace {

/// Queries that had a choice, and those of them that kept the same blocks.
struct ChoiceCount {
  std::int64_t n = 0, n_same = 0;

  void add(const Selection& selection) {
    for (std::size_t t = 0; t < selection.has_choice.size(); ++t) {
      if (!selection.has_choice[t]) continue;
      ++n;
      if (!selection.differs[t]) ++n_same;
    }
  }

  [[nodiscard]] std::optional<double> same_frac() const {
    return n == 0 ? std::nullopt : std::optional(static_cast<double>(n_same) / static_cast<double>(n));
  }
};

/// One kind of choice over all layers and prompts.
class ChoiceTally {
 public:
  explicit ChoiceTally(std::string tensor) : tensor_(std::move(tensor)) {}

  void add(const JudgedLayer& layer, const ChoiceTies& ties) {
    if (n_faults_ == 0 && !ties.faults.empty())
      first_fault_ = {layer.layer->layer, layer.prompt->prompt, ties.faults.front(), {}, tensor_};
    n_faults_ += std::ssize(ties.faults);
    n_excused_ += std::ssize(ties.excused);
    n_following_ += ties.n_following;
    largest_gap_ = std::max(largest_gap_, ties.largest_gap_excused);
  }

  [[nodiscard]] std::int64_t n_faults() const { return n_faults_; }

  /// Sets status, value and place, and adds to the text what is not judged.
  void conclude(Finding& finding) const {
    finding.status = n_faults_ == 0 ? Status::held : Status::fell_short;
    finding.value = static_cast<double>(n_faults_);
    finding.where = first_fault_;
    if (n_excused_ > 0) finding.text += fmt::format("; {} ties excused, largest gap {:.2e}", n_excused_, largest_gap_);
    if (n_following_ > 0) finding.text += fmt::format("; {} more follow from an earlier difference", n_following_);
  }

 private:
  std::string tensor_;
  std::int64_t n_faults_ = 0, n_excused_ = 0, n_following_ = 0;
  double largest_gap_ = 0;
  Where first_fault_;
};

}  // namespace

Finding experts_finding(const std::string& check, const std::vector<JudgedLayer>& layers) {
  Finding finding{check + "/experts", check, Status::not_run, {}, 0, {}, {}, "no expert ids on both sides"};
  ChoiceTally tally("expert_ids");
  std::int64_t n_pairs = 0;
  for (const JudgedLayer& layer : layers) {
    if (!layer.layer->routing) continue;
    n_pairs += layer.prompt->n_tokens;
    tally.add(layer, layer.ties.experts);
  }
  if (n_pairs == 0) return finding;
  finding.text = fmt::format("{} of {} token-layer pairs chose other experts", tally.n_faults(), n_pairs);
  tally.conclude(finding);
  return finding;
}

Finding blocks_finding(const std::string& check, const std::vector<JudgedLayer>& layers) {
  Finding finding{check + "/blocks", check, Status::not_applicable, {}, 0, {}, {}, "no selected blocks on both sides"};
  ChoiceTally tally("selected_blocks");
  ChoiceCount choices;
  bool any = false;
  for (const JudgedLayer& layer : layers) {
    if (!layer.layer->selection) continue;
    any = true;
    choices.add(*layer.layer->selection);
    tally.add(layer, layer.ties.blocks);
  }
  if (!any) return finding;
  finding.text = fmt::format("{} queries kept other blocks; {} of {} with a choice kept the same", tally.n_faults(),
                             choices.n_same, choices.n);
  tally.conclude(finding);
  if (choices.n == 0 && finding.status == Status::held) {
    finding.status = Status::mistrusted;
    finding.text =
        "no query had a choice of blocks, so nothing shows that the right ones are kept: run a longer prompt";
  }
  return finding;
}

std::optional<Finding> ngram_rows_finding(const std::string& check, const std::vector<JudgedLayer>& layers) {
  std::int64_t n = 0, n_differing = 0;
  Where first;
  for (const JudgedLayer& layer : layers) {
    if (!layer.layer->ngram_rows) continue;
    const NgramRows& rows = *layer.layer->ngram_rows;
    if (n_differing == 0 && rows.n_differing > 0)
      first = {layer.layer->layer, layer.prompt->prompt, rows.first_position, {}, "ngram_rows"};
    n += rows.n_tokens;
    n_differing += rows.n_differing;
  }
  if (n == 0) return std::nullopt;
  const Status status = n_differing == 0 ? Status::held : Status::fell_short;
  return Finding{check + "/ngram-rows",
                 check,
                 status,
                 static_cast<double>(n_differing),
                 0,
                 {},
                 first,
                 fmt::format("{} of {} tokens looked up other rows of the n-gram table", n_differing, n)};
}

nlohmann::json blocks_row(const JudgedLayer& judged) {
  const Selection& selection = *judged.layer->selection;
  const ChoiceTies& ties = judged.ties.blocks;
  ChoiceCount choices;
  choices.add(selection);
  const Status status = !ties.faults.empty() ? Status::fell_short
                        : choices.n == 0     ? Status::not_applicable
                                             : Status::held;
  return {{"queries_with_choice", choices.n},
          {"same_frac", number(choices.same_frac())},
          {"differing_queries", selection.n_differing()},
          {"ties_excused", ties.excused.size()},
          {"largest_gap_excused", ties.excused.empty() ? nlohmann::json() : number(ties.largest_gap_excused)},
          {"gap_bound", number(judged.block_noise)},
          {"status", text(status)}};
}

}  // namespace kalibri::oracle

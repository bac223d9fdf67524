#include "oracle/compare/dump_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kalibri::oracle {

namespace {

/// What only one side has: by name, how often and where first.
class Missing {
 public:
  void note(bool in_reference, const std::string& name, const std::string& place) {
    Entry& entry = entries_[{in_reference, name}];
    if (entry.count++ == 0) entry.first_place = place;
  }

  [[nodiscard]] Finding finding(const std::string& check) const {
    Finding finding{check + "/complete", check, Status::held, {}, {}, {}, {}, "both sides hold the same tensors"};
    if (entries_.empty()) return finding;
    finding.status = Status::not_run;
    finding.value = static_cast<double>(entries_.size());
    finding.bound = 0;
    std::vector<std::string> parts;
    for (const auto& [key, entry] : entries_) {
      parts.push_back(fmt::format("the {} lacks {} ({}{})", key.first ? "candidate" : "reference", key.second,
                                  entry.first_place,
                                  entry.count > 1 ? fmt::format(" and {} more", entry.count - 1) : ""));
    }
    finding.text = fmt::format("not compared: {}", fmt::join(parts, "; "));
    return finding;
  }

 private:
  struct Entry {
    std::int64_t count = 0;
    std::string first_place;
  };
  std::map<std::pair<bool, std::string>, Entry> entries_;
};

class Comparison {
 public:
  Comparison(const dump::Reader& reference, const dump::Reader& candidate, const std::string& check,
             const LayerRange& layers)
      : reference_(reference), candidate_(candidate), check_(check), layers_(layers) {}

  DumpDifference run() {
    DumpDifference difference{check_, {}, {compare_identity(reference_, candidate_, check_)}};
    for (const dump::PromptInfo& prompt : candidate_.prompts()) {
      if (reference_.find_prompt(prompt.name) == nullptr) missing_.note(false, "prompt " + prompt.name, "all of it");
    }
    for (const dump::PromptInfo& prompt : reference_.prompts()) {
      const dump::PromptInfo* other = candidate_.find_prompt(prompt.name);
      if (other == nullptr) {
        missing_.note(true, "prompt " + prompt.name, "all of it");
      } else {
        difference.prompts.push_back(compare_prompt(prompt, *other));
      }
    }
    if (difference.prompts.empty()) {
      throw dump::Error(
          fmt::format("{}: no prompt in common with {}: nothing to compare; make both from the same prompts",
                      candidate_.path().string(), reference_.path().string()));
    }
    difference.findings.push_back(missing_.finding(check_));
    difference.findings.push_back(finite_finding(check_, non_finite_));
    return difference;
  }

 private:
  PromptDifference compare_prompt(const dump::PromptInfo& ours, const dump::PromptInfo& theirs) {
    refuse_other_tokens(reference_, ours, candidate_, theirs);
    PromptDifference difference{ours.name, static_cast<std::int64_t>(ours.tokens.size()), {}, {}, {}};
    for (const std::string name : {"embedding", "final_norm"}) {
      if (both_have(ours.name, name, name, "")) {
        difference.tensors.emplace(name, tensor(ours.name, name, {}, name));
      }
    }
    std::vector<std::int64_t> all;
    std::set_union(ours.layers.begin(), ours.layers.end(), theirs.layers.begin(), theirs.layers.end(),
                   std::back_inserter(all));
    for (const std::int64_t layer : all) {
      if (layer < layers_.first || layer >= layers_.end) continue;
      const bool in_ours = std::binary_search(ours.layers.begin(), ours.layers.end(), layer);
      const bool in_theirs = std::binary_search(theirs.layers.begin(), theirs.layers.end(), layer);
      if (in_ours && in_theirs) {
        difference.layers.push_back(compare_layer(ours.name, layer));
      } else {
        missing_.note(in_ours, fmt::format("layer {}", layer), "prompt " + ours.name);
      }
    }
    if (both_have(ours.name, "logits", "logits", "")) {
      difference.logits = compare_logit_rows(prefill_logits(reference_, ours), prefill_logits(candidate_, theirs));
      note_positions(ours, theirs);
      if (difference.logits) note_non_finite(difference.logits->metrics.not_finite, ours.name, {}, "logits");
    }
    return difference;
  }

  LayerDifference compare_layer(const std::string& prompt, std::int64_t layer) {
    LayerDifference difference{layer,
                               {},
                               compare_routing(reference_, candidate_, prompt, layer),
                               compare_selection(reference_, candidate_, prompt, layer),
                               compare_ngram_rows(reference_, candidate_, prompt, layer)};
    for (const dump::TensorName& entry : dump::kLayerTensors) {
      const std::string name(entry.name);
      if (!both_have(prompt, dump::layer_path(layer, name), name, fmt::format(", layer {}", layer)) || !entry.floating)
        continue;
      if (name == "expert_weights" && difference.routing && difference.routing->weights) {
        note_non_finite(difference.routing->weights->metrics.not_finite, prompt, layer, name);
        difference.tensors.emplace(name, std::move(*difference.routing->weights));
        difference.routing->weights.reset();
      } else {
        difference.tensors.emplace(name, tensor(prompt, dump::layer_path(layer, name), layer, name));
      }
    }
    return difference;
  }

  TensorDifference tensor(const std::string& prompt, const std::string& path, std::optional<std::int64_t> layer,
                          const std::string& name) {
    const std::int64_t n_streams = name == "residual" ? reference_.header().n_streams : 1;
    TensorDifference difference = compare_tensor({reference_, prompt, path}, {candidate_, prompt, path}, n_streams);
    note_non_finite(difference.metrics.not_finite, prompt, layer, name);
    return difference;
  }

  /// Whether both sides have `path`; one side alone is remembered as missing on the other.
  bool both_have(const std::string& prompt, const std::string& path, const std::string& name,
                 const std::string& layer_text) {
    const bool in_reference = reference_.find(prompt, path).has_value();
    const bool in_candidate = candidate_.find(prompt, path).has_value();
    if (in_reference != in_candidate) missing_.note(in_reference, name, "prompt " + prompt + layer_text);
    return in_reference && in_candidate;
  }

  void note_positions(const dump::PromptInfo& ours, const dump::PromptInfo& theirs) {
    for (const bool in_reference : {true, false}) {
      const auto& has = in_reference ? ours.positions : theirs.positions;
      const auto& other = in_reference ? theirs.positions : ours.positions;
      for (const std::int64_t position : has) {
        if (std::binary_search(other.begin(), other.end(), position)) continue;
        missing_.note(in_reference, "logits of " + ours.name, fmt::format("position {}", position));
      }
    }
  }

  void note_non_finite(const std::optional<NotFinite>& value, const std::string& prompt,
                       std::optional<std::int64_t> layer, const std::string& name) {
    if (!value) return;
    Finding finding;
    finding.where = {layer, prompt, value->position, value->element, name};
    finding.text = fmt::format("the {} has a value that is not finite: {}",
                               value->in_reference ? "reference" : "candidate", text(finding.where));
    non_finite_.push_back(std::move(finding));
  }

  const dump::Reader& reference_;
  const dump::Reader& candidate_;
  const std::string& check_;
  LayerRange layers_;
  Missing missing_;
  std::vector<Finding> non_finite_;
};

/// [3, T]; a dump without them is of text, whose tokens lie one behind the other on every axis.
std::vector<std::int64_t> position_ids(const dump::Reader& dump, const dump::PromptInfo& prompt) {
  if (dump.find(prompt.name, "position_ids")) return dump.read_i64(prompt.name, "position_ids", 0, 3);
  std::vector<std::int64_t> ids;
  for (int axis = 0; axis < 3; ++axis) {
    for (std::int64_t t = 0; t < std::ssize(prompt.tokens); ++t) ids.push_back(t);
  }
  return ids;
}

}  // namespace

DumpDifference compare_dumps(const dump::Reader& reference, const dump::Reader& candidate, const std::string& check,
                             const LayerRange& layers) {
  return Comparison(reference, candidate, check, layers).run();
}

void refuse_other_tokens(const dump::Reader& reference, const dump::PromptInfo& ours, const dump::Reader& candidate,
                         const dump::PromptInfo& theirs) {
  if (ours.tokens == theirs.tokens) {
    if (position_ids(reference, ours) == position_ids(candidate, theirs)) return;
    throw dump::Error(
        fmt::format("{}: prompt {}: position_ids differ from those in {}: the same tokens at other places; "
                    "refused",
                    candidate.path().string(), ours.name, reference.path().string()));
  }
  const auto at = std::mismatch(ours.tokens.begin(), ours.tokens.end(), theirs.tokens.begin(), theirs.tokens.end());
  throw dump::Error(
      fmt::format("{}: prompt {}: token ids differ from those in {} from position {} on ({} and {} tokens): not the "
                  "same text; refused",
                  candidate.path().string(), ours.name, reference.path().string(), at.first - ours.tokens.begin(),
                  theirs.tokens.size(), ours.tokens.size()));
}

Finding compare_identity(const dump::Reader& reference, const dump::Reader& candidate, const std::string& check) {
  Finding finding{check + "/identity", check, Status::held, {}, {}, {}, {}, "same checkpoint, model type and prompts"};
  const dump::Header& ours = reference.header();
  const dump::Header& theirs = candidate.header();
  std::vector<std::string> doubts;
  if (ours.checkpoint_fingerprint != theirs.checkpoint_fingerprint) {
    doubts.push_back(fmt::format("checkpoint fingerprints differ: {} and {}", ours.checkpoint_fingerprint,
                                 theirs.checkpoint_fingerprint));
  }
  if (ours.checkpoint_fingerprint.empty() && theirs.checkpoint_fingerprint.empty()) {
    doubts.emplace_back("neither dump says which checkpoint it is of");
  }
  if (ours.model_type != theirs.model_type) {
    doubts.push_back(fmt::format("model types differ: {} and {}", ours.model_type, theirs.model_type));
  }
  for (const dump::PromptInfo& prompt : reference.prompts()) {
    const dump::PromptInfo* other = candidate.find_prompt(prompt.name);
    if (other == nullptr || prompt.text_sha256.empty() || other->text_sha256.empty()) continue;  // ids without a text
    if (prompt.text_sha256 == other->text_sha256) continue;
    doubts.push_back(fmt::format("prompt {} is of another text (text_sha256 {} and {}), though of the same ids",
                                 prompt.name, prompt.text_sha256, other->text_sha256));
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(reference.path(), candidate.path(), ignored)) {
    doubts.emplace_back("both sides are one and the same file");
  }
  if (doubts.empty()) return finding;
  finding.status = Status::mistrusted;
  finding.text = fmt::format("{}", fmt::join(doubts, "; "));
  return finding;
}

Finding finite_finding(const std::string& check, const std::vector<Finding>& non_finite) {
  Finding finding{check + "/finite", check, Status::held, {}, {}, {}, {}, "every value is finite"};
  if (non_finite.empty()) return finding;
  finding.status = Status::fell_short;
  finding.where = non_finite.front().where;
  finding.text = non_finite.front().text;
  if (non_finite.size() > 1) finding.text += fmt::format("; {} tensors in all hold such values", non_finite.size());
  return finding;
}

}  // namespace kalibri::oracle

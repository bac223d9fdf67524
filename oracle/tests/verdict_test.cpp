// The verdict on synthetic dumps, from both sides of every bound: noise passes, the smallest excess fails and is named.
#include <cmath>
#include <limits>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/tests/synthetic.hpp"
#include "oracle/verdict/measure.hpp"
#include "oracle/verdict/report.hpp"
#include "oracle/verdict/rules.hpp"

using namespace kalibri;
using namespace kalibri::oracle;
using Catch::Matchers::ContainsSubstring;
using dump::layer_path;
using fixtures::TempDirectory;

namespace {

/// All dumps of a verification, open to changes until run().
struct Case {
  synthetic::Dump reference = synthetic::noisy(synthetic::exact("chained"), "reference", 1);
  synthetic::Dump reference_f64 = synthetic::exact("chained");
  synthetic::Dump teacher_forced_f64 = synthetic::exact("teacher-forced");
  synthetic::Dump teacher_forced = synthetic::noisy(synthetic::exact("teacher-forced"), "engine", 2);
  synthetic::Dump chained = synthetic::noisy(synthetic::exact("chained"), "engine", 3);
  synthetic::Dump repeated = chained;
  synthetic::Dump decoded = synthetic::decoded(chained);
  bool with_floors = true;

  Assessment run() const {
    const TempDirectory folder;
    const auto write = [&](const synthetic::Dump& dump, const char* name) { return dump.write(folder.path(), name); };
    const dump::Reader r = write(reference, "r.h5"), r64 = write(reference_f64, "r64.h5"),
                       f64 = write(teacher_forced_f64, "f64.h5"), tf = write(teacher_forced, "tf.h5"),
                       c = write(chained, "c.h5"), again = write(repeated, "again.h5"), d = write(decoded, "d.h5");
    Dumps dumps{.reference = &r,
                .reference_f64 = with_floors ? &r64 : nullptr,
                .teacher_forced_f64 = with_floors ? &f64 : nullptr,
                .teacher_forced = &tf,
                .chained = &c,
                .repeated = &again,
                .decoded = &d};
    return assess(dumps, {}, 5);
  }
};

const Finding& find(const Assessment& assessment, const std::string& id) {
  for (const Finding& finding : assessment.findings) {
    if (finding.id == id) return finding;
  }
  FAIL("no finding " << id);
  throw std::logic_error(id);
}

std::vector<std::string> ids_with(const Assessment& assessment, Status status) {
  std::vector<std::string> ids;
  for (const Finding& finding : assessment.findings) {
    if (finding.status == status) ids.push_back(finding.id);
  }
  return ids;
}

/// Moves one element of `tensor` so that its row error against the reference becomes `factor` times the finding's
/// bound.
void push_row(Case& all, const std::string& tensor, std::size_t row, double factor, double bound) {
  auto& ours = all.reference.prompt("long");
  auto& theirs = all.teacher_forced.prompt("long");
  double norm = 0;
  for (std::size_t j = 0; j < synthetic::kHidden; ++j) {
    theirs.at(tensor, row, j) = ours.at(tensor, row, j);
    norm += std::pow(ours.at(tensor, row, j), 2);
  }
  // doubled so that rounding the element to fp32 cannot matter: bounds are some 1e-7 of the row, elements up to half of
  // it
  for (std::size_t j = 0; j < synthetic::kHidden; ++j) {
    theirs.at(tensor, row, j) += factor * bound * std::sqrt(norm / static_cast<double>(synthetic::kHidden));
  }
}

}  // namespace

TEST_CASE("Noise alone holds every finding, and decode of equal bits too") {
  const Assessment assessment = Case().run();
  REQUIRE(ids_with(assessment, Status::held).size() == assessment.findings.size());
  REQUIRE(judge(assessment.findings).exit_status == 0);
  REQUIRE(find(assessment, "teacher-forced/residual").value > 0.0);
  REQUIRE(find(assessment, "teacher-forced/residual").bound ==
          kKappa * *find(assessment, "teacher-forced/residual").floor);
}

TEST_CASE(
    "A residual row passes just below its bound and falls short just above, with its layer, prompt and position") {
  const std::string tensor = layer_path(1, "residual");
  Case below, above;
  const Assessment plain = below.run();
  double floor = 0;
  for (const auto& entry : plain.floors.at("teacher_forced").at("tensors")) {
    if (entry.at("layer") == 1 && entry.at("tensor") == "residual") floor = entry.at("rel_token_max").get<double>();
  }
  push_row(below, tensor, 9, 0.9, kKappa * floor);
  push_row(above, tensor, 9, 1.1, kKappa * floor);
  REQUIRE(find(below.run(), "teacher-forced/residual").status == Status::held);
  const Assessment assessment = above.run();
  const Finding& finding = find(assessment, "teacher-forced/residual");
  REQUIRE(finding.status == Status::fell_short);
  REQUIRE(finding.where.layer == 1);
  REQUIRE(finding.where.prompt == "long");
  REQUIRE(finding.where.position == 9);
  REQUIRE_THAT(finding.text, ContainsSubstring("layer 1 is the first to fall short"));
  REQUIRE(judge(assessment.findings).exit_status == 1);
  for (const auto& row : assessment.comparisons.at("teacher_forced").at("rows")) {
    const bool is_the_row = row.at("layer") == 1 && row.at("prompt") == "long";
    REQUIRE((row.at("status") == "fell_short") == is_the_row);
  }
}

TEST_CASE("An error in all other channels is seen beside one channel that dwarfs them") {
  Case all;
  const std::string tensor = layer_path(2, "residual");
  for (synthetic::Dump* dump : {&all.reference, &all.teacher_forced, &all.teacher_forced_f64})
    dump->prompt("long").at(tensor, 4, 0) = 65536;
  for (std::size_t j = 1; j < synthetic::kHidden; ++j) all.teacher_forced.prompt("long").at(tensor, 4, j) *= 1 + 1e-5;
  const Assessment assessment = all.run();
  REQUIRE(find(assessment, "teacher-forced/residual").status == Status::held);
  REQUIRE(find(assessment, "teacher-forced/residual-trimmed").status == Status::fell_short);
  REQUIRE(find(assessment, "teacher-forced/residual-trimmed").where.position == 4);
}

TEST_CASE(
    "A value that is not finite falls short with tensor, prompt, row and column, on either side and in every tensor") {
  const double bad = GENERATE(std::nan(""), std::numeric_limits<double>::infinity());
  const std::string tensor =
      GENERATE(std::string("embedding"), layer_path(1, "residual"), layer_path(0, "router_logits"),
               layer_path(2, "expert_weights"), std::string("final_norm"), std::string("logits"));
  const bool in_reference = GENERATE(false, true);
  CAPTURE(bad, tensor, in_reference);
  Case all;
  (in_reference ? all.reference : all.teacher_forced).prompt("long").at(tensor, 6, 1) = bad;
  const Assessment assessment = all.run();
  const Finding& finding = find(assessment, "teacher-forced/finite");
  REQUIRE(finding.status == Status::fell_short);
  REQUIRE(finding.where.prompt == "long");
  REQUIRE(finding.where.position == 6);
  REQUIRE(finding.where.tensor == tensor.substr(tensor.rfind('/') + 1));
  REQUIRE_THAT(finding.text,
               ContainsSubstring(in_reference ? "the reference has a value" : "the candidate has a value"));
  const std::string name = finding.where.tensor;
  REQUIRE(find(assessment, "teacher-forced/" + name).status == Status::fell_short);
  REQUIRE(find(assessment, "teacher-forced/" + name).where.position == 6);
}

TEST_CASE("A NaN on both sides is not agreement, and a NaN in decode or in a differing token's weights is seen") {
  Case all;
  all.reference.prompt("long").at("logits", 3, 0) = std::nan("");
  all.chained.prompt("long").at("logits", 3, 0) = std::nan("");
  all.decoded = synthetic::decoded(all.chained);
  all.repeated = all.chained;
  const Assessment assessment = all.run();
  for (const char* id : {"chained/finite", "chained/kl_mean", "chained/kl_max", "chained/max_abs_logit", "chained/top1",
                         "decode/head", "decode/bands", "decode/repeat", "bands/prefill", "bands/decode"}) {
    INFO(id);
    REQUIRE(find(assessment, id).status == Status::fell_short);
  }
  REQUIRE(find(assessment, "decode/tail").status == Status::held);

  Case routed;
  auto& prompt = routed.teacher_forced.prompt("long");
  prompt.at(layer_path(0, "expert_ids"), 2, 0) = prompt.at(layer_path(0, "expert_ids"), 2, 1) == 7 ? 6 : 7;
  prompt.at(layer_path(0, "expert_weights"), 2, 1) = std::nan("");
  REQUIRE(find(routed.run(), "teacher-forced/finite").where.position == 2);
}

TEST_CASE("Other token ids or places, other shapes and no common prompt are refused") {
  Case tokens;
  std::swap(tokens.chained.prompt("long").tokens[3], tokens.chained.prompt("long").tokens[4]);
  REQUIRE_THROWS_WITH(tokens.run(),
                      ContainsSubstring("prompt long: token ids differ") && ContainsSubstring("position 3"));
  Case places;  // [3, T]: an image's tokens share one place on the first axis
  auto& long_prompt = places.chained.prompt("long");
  const auto n_tokens = std::ssize(long_prompt.tokens);
  synthetic::Dataset ids{{n_tokens}, {}, false};
  for (std::int64_t i = 0; i < 3 * n_tokens; ++i) ids.values.push_back(static_cast<double>(i % n_tokens));
  long_prompt.datasets["position_ids"] = ids;
  CHECK_NOTHROW(places.run());  // text, said in words
  long_prompt.at("position_ids", 0, 5) = 4;
  REQUIRE_THROWS_WITH(places.run(), ContainsSubstring("prompt long: position_ids differ"));
  Case swapped;
  std::swap(swapped.teacher_forced.prompts[0].name, swapped.teacher_forced.prompts[1].name);
  REQUIRE_THROWS_WITH(swapped.run(), ContainsSubstring("token ids differ"));
  Case shape;
  auto& residual = shape.teacher_forced.prompt("one").datasets.at(layer_path(0, "router_logits"));
  residual.values.pop_back();
  residual.row_dims = {synthetic::kExperts - 1};
  REQUIRE_THROWS_WITH(shape.run(), ContainsSubstring("shape [1, 7], expected [1, 8]"));
  Case vocabulary;
  for (synthetic::PromptData& prompt : vocabulary.chained.prompts) {
    prompt.datasets["logits"].row_dims = {synthetic::kVocab / 2};
    prompt.datasets["logits"].values.resize(prompt.tokens.size() * synthetic::kVocab / 2);
  }
  REQUIRE_THROWS_WITH(vocabulary.run(), ContainsSubstring("12 columns, expected 24"));
  Case none;
  none.teacher_forced.prompts[0].name = "other";
  none.teacher_forced.prompts[1].name = "another";
  REQUIRE_THROWS_WITH(none.run(), ContainsSubstring("no prompt in common"));
}

TEST_CASE("What one side lacks is not run, by name") {
  Case all;
  all.teacher_forced.prompt("long").datasets.erase(layer_path(1, "router_logits"));
  for (const char* name : {"residual", "router_logits", "router_gap", "expert_ids", "expert_weights"}) {
    all.reference.prompt("one").datasets.erase(layer_path(2, name));
  }
  const Assessment assessment = all.run();
  const Finding& finding = find(assessment, "teacher-forced/complete");
  REQUIRE(finding.status == Status::not_run);
  REQUIRE_THAT(finding.text, ContainsSubstring("the candidate lacks router_logits (prompt long, layer 1)"));
  REQUIRE_THAT(finding.text, ContainsSubstring("the reference lacks layer 2 (prompt one)"));
  REQUIRE(judge(assessment.findings).exit_status == 1);
  Case prompt;
  prompt.chained.prompts.pop_back();
  REQUIRE_THAT(find(prompt.run(), "chained/complete").text, ContainsSubstring("the candidate lacks prompt one"));
}

TEST_CASE("Another checkpoint, or none named, is mistrusted") {
  Case other;
  other.teacher_forced.header.checkpoint_fingerprint = "another";
  REQUIRE(find(other.run(), "teacher-forced/identity").status == Status::mistrusted);
  Case family;
  family.chained.header.model_type = "else";
  REQUIRE(find(family.run(), "chained/identity").status == Status::mistrusted);
  Case unnamed;
  for (synthetic::Dump* dump : {&unnamed.reference, &unnamed.chained}) dump->header.checkpoint_fingerprint.clear();
  REQUIRE(find(unnamed.run(), "chained/identity").status == Status::mistrusted);
  const TempDirectory folder;
  const dump::Reader one = unnamed.reference.write(folder.path(), "one.h5");
  const Assessment itself = assess({.reference = &one, .chained = &one}, {}, 0);
  REQUIRE_THAT(find(itself, "chained/identity").text, ContainsSubstring("one and the same file"));
}

TEST_CASE("Without fp64 there is no floor, and what it would bound is mistrusted, equality of bits needs none") {
  Case all;
  all.with_floors = false;
  const Assessment assessment = all.run();
  for (const char* id :
       {"teacher-forced/residual", "teacher-forced/logits", "chained/kl_mean", "chained/top1", "bands/prefill"}) {
    INFO(id);
    REQUIRE(find(assessment, id).status == Status::mistrusted);
  }
  REQUIRE(find(assessment, "decode/tail").status == Status::held);
  REQUIRE(judge(assessment.findings).status == Status::mistrusted);
}

TEST_CASE("A floor that would excuse everything is mistrusted") {
  Case all;
  for (double& value : all.teacher_forced_f64.prompt("long").datasets.at(layer_path(1, "residual")).values)
    value *= 1.001;
  const Assessment assessment = all.run();
  const Finding& finding = find(assessment, "floor-teacher-forced/floor");
  REQUIRE(finding.status == Status::mistrusted);
  REQUIRE(finding.where.layer == 1);
  REQUIRE(judge(assessment.findings).exit_status == 1);
}

TEST_CASE("A floor of gaps beyond twice the router's, and of all but the largest channels, are mistrusted, too") {
  for (const bool is_chained : {false, true}) {
    Case gap;
    synthetic::Dump& f64 = is_chained ? gap.reference_f64 : gap.teacher_forced_f64;
    const std::string id = is_chained ? "floor-chained/floor" : "floor-teacher-forced/floor";
    f64.prompt("long").at(layer_path(2, "router_gap"), 4, 0) += 1e-4;
    const Finding loose = find(gap.run(), id);
    CHECK(loose.status == Status::mistrusted);
    CHECK(loose.where.layer == 2);
    CHECK(loose.where.tensor == "router_gap");
    Case scores;
    (is_chained ? scores.reference_f64 : scores.teacher_forced_f64)
        .prompt("long")
        .at(layer_path(synthetic::kSparseLayer, "index_scores"), 20, 0) += 0.1;
    CHECK(find(scores.run(), id).status == Status::mistrusted);
  }
  Case sink;  // one large channel hides an error in the others from the plain row error
  for (synthetic::Dump* dump : {&sink.reference, &sink.teacher_forced_f64, &sink.teacher_forced, &sink.chained})
    dump->prompt("long").at(layer_path(1, "residual"), 0, 3) = 65536;
  sink.teacher_forced_f64.prompt("long").at(layer_path(1, "residual"), 0, 9) += 0.01;
  const Finding trimmed = find(sink.run(), "floor-teacher-forced/floor");
  CHECK(trimmed.status == Status::mistrusted);
  CHECK(trimmed.where.layer == 1);
  CHECK(trimmed.where.tensor == "residual-trimmed");
}

TEST_CASE("What falls short is named, also beside what has no floor") {
  Case all;
  for (synthetic::Dump* dump : {&all.teacher_forced_f64, &all.reference_f64})
    dump->prompt("long").datasets.erase(layer_path(0, "residual"));
  for (synthetic::PromptData& prompt : all.teacher_forced_f64.prompts)
    prompt.datasets.erase(layer_path(0, "residual"));  // no floor for layer 0
  all.teacher_forced.prompt("long").at(layer_path(2, "residual"), 5, 0) += 1;
  const Finding finding = find(all.run(), "teacher-forced/residual");
  CHECK(finding.status == Status::fell_short);
  CHECK(finding.where.layer == 2);
  CHECK(finding.where.position == 5);
  Measure measure("check", "name", 2);
  measure.add(5, std::nullopt, {{}, "without", {}, {}, ""});
  measure.add(3, 1, {{}, "above", {}, {}, ""});
  CHECK(measure.finding().status == Status::fell_short);
  CHECK(measure.finding().where.prompt == "above");
}

TEST_CASE("A floor of damaged logits, and one that is not the reference's own fp64, are mistrusted") {
  Case logits;
  for (double& value : logits.reference_f64.prompt("long").datasets.at("logits").values) value *= 1.001;
  REQUIRE(find(logits.run(), "floor-chained/floor").status == Status::mistrusted);
  Case candidate;  // the engine's own dump as its floor
  candidate.reference_f64 = candidate.chained;
  const Assessment assessment = candidate.run();
  REQUIRE(find(assessment, "floor-chained/origin").status == Status::mistrusted);
  REQUIRE(judge(assessment.findings).exit_status == 1);
  Case narrow;  // the reference's fp32 again instead of its fp64
  narrow.reference_f64 = narrow.reference;
  REQUIRE(find(narrow.run(), "floor-chained/origin").status == Status::mistrusted);
  REQUIRE(find(Case{}.run(), "floor-chained/origin").status == Status::held);
}

TEST_CASE("Decode must equal prefill in every bit, a second prefill the first") {
  Case ulp;
  float value = static_cast<float>(ulp.decoded.prompt("long").at("decode/tail/logits", 7, 2));
  value = std::nextafter(value, 100.0F);
  ulp.decoded.prompt("long").at("decode/tail/logits", 7, 2) = static_cast<double>(value);
  const Assessment assessment = ulp.run();
  const Finding& finding = find(assessment, "decode/tail");
  REQUIRE(finding.status == Status::fell_short);
  REQUIRE(finding.where.position == 20);
  REQUIRE(find(assessment, "end-to-end/decode_max_diff").status == Status::fell_short);
  REQUIRE(find(assessment, "decode/head").status == Status::held);
  Case zero;
  zero.chained.prompt("one").at("logits", 0, 5) = 0.0;
  zero.repeated = zero.chained;
  zero.repeated.prompt("one").at("logits", 0, 5) = -0.0;
  REQUIRE(find(zero.run(), "decode/repeat").status == Status::fell_short);
}

TEST_CASE("The seven members of a finding are in its JSON, and absent numbers are null") {
  Finding finding;
  finding.id = "a/b";
  finding.check = "a";
  finding.status = Status::fell_short;
  finding.value = std::nan("");
  finding.bound = 2;
  finding.where.layer = 3;
  finding.where.prompt = "p";
  finding.where.position = 4;
  finding.where.column = 5;
  finding.where.tensor = "residual";
  finding.text = "words";
  const nlohmann::json expected = {
      {"id", "a/b"},
      {"check", "a"},
      {"status", "fell_short"},
      {"value", nullptr},
      {"bound", 2.0},
      {"floor", nullptr},
      {"where", {{"layer", 3}, {"prompt", "p"}, {"position", 4}, {"column", 5}, {"tensor", "residual"}}},
      {"text", "words"}};
  REQUIRE(to_json(finding) == expected);
  REQUIRE(text(finding.where) == "layer 3, prompt p, position 4, column 5 of residual");
}

TEST_CASE("The heaviest status decides, and findings that show nothing are mistrusted") {
  const auto status_of = [](std::vector<Status> statuses) {
    std::vector<Finding> findings(statuses.size());
    for (std::size_t i = 0; i < statuses.size(); ++i) findings[i].status = statuses[i];
    return judge(findings);
  };
  REQUIRE(status_of({Status::held, Status::not_applicable}).exit_status == 0);
  REQUIRE(status_of({Status::held, Status::not_applicable}).text == "1 held, 1 not applicable");
  for (const Status status : {Status::not_run, Status::mistrusted, Status::fell_short}) {
    REQUIRE(status_of({Status::held, status, Status::held}).status == status);
    REQUIRE(status_of({Status::held, status}).exit_status == 1);
  }
  REQUIRE(status_of({Status::mistrusted, Status::fell_short, Status::not_run}).status == Status::fell_short);
  REQUIRE(status_of({Status::not_applicable}).status == Status::mistrusted);
  REQUIRE(status_of({}).exit_status == 1);
}

TEST_CASE("Chained, a reference whose two rounded runs part by more than its bound allows proves nothing") {
  const auto trust_of_logits_off_by = [](double factor) {
    Case rounded;
    for (synthetic::Dump* dump : {&rounded.reference, &rounded.reference_f64, &rounded.teacher_forced_f64,
                                  &rounded.chained, &rounded.teacher_forced, &rounded.repeated, &rounded.decoded}) {
      dump->header.precision = "bf16";
    }
    for (double& value : rounded.reference_f64.prompt("long").datasets.at("logits").values) value *= factor;
    return find(rounded.run(), "floor-chained/floor").status;
  };
  CHECK(trust_of_logits_off_by(1.01) == Status::held);
  CHECK(trust_of_logits_off_by(1.2) == Status::mistrusted);
}

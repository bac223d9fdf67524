// What accuracy tables say, worked out by hand on two prompts of one and three tokens, from dumps to Markdown: which
// mean is weighted by what, what stands in which row and column, and that another number in a dump moves it.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/tables/variant.hpp"
#include "oracle/tests/synthetic.hpp"
#include "reports/accuracy_tables.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;
using oracle::synthetic::Dataset;
using oracle::synthetic::Dump;
using oracle::synthetic::PromptData;

namespace {

const double kLn3 = std::log(3.0);
constexpr std::int64_t kWindow = 2;

Dataset rows(std::size_t n, const std::vector<double>& row, bool floating = true) {
  Dataset dataset{{std::ssize(row)}, {}, floating};
  for (std::size_t t = 0; t < n; ++t) dataset.values.insert(dataset.values.end(), row.begin(), row.end());
  return dataset;
}

/// Every token: residual and final norm (3, 4), experts 0 and 1 of layers 0 and 1, probabilities 3/4 and 1/4.
PromptData prompt(const std::string& name, std::size_t n) {
  PromptData data{name, std::vector<std::int32_t>(n, 1), {}, {}};
  for (const std::string layer : {"layers/00/", "layers/01/"}) {
    data.datasets[layer + "residual"] = rows(n, {3, 4});
    data.datasets[layer + "expert_ids"] = rows(n, {0, 1}, /*floating=*/false);
  }
  data.datasets["final_norm"] = rows(n, {3, 4});
  data.datasets["logits"] = rows(n, {kLn3, 0});
  return data;
}

Dump dump_of(const std::string& producer, const std::string& mode) {
  return {{producer, "1", "kolibri1", 1, mode, "fingerprint", "f64", "{}"},
          {prompt("a", 1), prompt("b", 3)},
          /*is_f64=*/true};
}

void set(Dump& dump, const std::string& name, const std::string& path, std::size_t row, double x, double y) {
  dump.prompt(name).at(path, row, 0) = x;
  dump.prompt(name).at(path, row, 1) = y;
}

/// The candidate: of a's only and b's last token the probabilities exchanged (KL = ln 3 / 2, another first token); in
/// layer 1 another expert for a's token and b's second; b's first final norm twice as large.
Dump chained() {
  Dump dump = dump_of("engine", "chained");
  set(dump, "a", "logits", 0, 0, kLn3);
  set(dump, "b", "logits", 2, 0, kLn3);
  set(dump, "a", "layers/00/expert_ids", 0, 1, 0);  // the same set
  set(dump, "a", "layers/01/expert_ids", 0, 0, 2);
  set(dump, "b", "layers/01/expert_ids", 1, 2, 1);
  set(dump, "b", "final_norm", 0, 6, 8);
  return dump;
}

/// Its run through the caches: of b the schedules tail (positions 1 and 2, the last off by a quarter), head (right) and
/// bands (positions 0 and 1, the second exchanged).
Dump decoded() {
  Dump dump = dump_of("engine", "decode");
  for (PromptData& data : dump.prompts) data.datasets.clear();
  PromptData& b = dump.prompt("b");
  b.datasets["decode/tail/logits"] = {{2}, {kLn3, 0, 0.25, kLn3}, true};
  b.datasets["decode/head/logits"] = {{2}, {kLn3, 0, kLn3, 0, 0, kLn3}, true};
  b.datasets["decode/bands/logits"] = {{2}, {kLn3, 0, 0, kLn3}, true};
  b.schedules = {{"tail", {1, 1}}, {"head", {0, 0}}, {"bands", {0, 0}}};
  return dump;
}

/// Layer by layer on the reference's inputs: rel 0 and 1 / (5 √3) in layer 0, 1 and 1 / √3 in layer 1.
Dump teacher_forced() {
  Dump dump = chained();
  dump.header.mode = "teacher-forced";
  set(dump, "b", "layers/00/residual", 2, 3, 5);
  set(dump, "a", "layers/01/residual", 0, 0, 0);
  set(dump, "b", "layers/01/residual", 2, 6, 8);
  return dump;
}

json measure_chained(const Dump& candidate, const Dump& cached = decoded()) {
  const fixtures::TempDirectory folder;
  return oracle::chained_measures(dump_of("reference", "chained").write(folder.path(), "reference.h5"),
                                  candidate.write(folder.path(), "candidate.h5"),
                                  cached.write(folder.path(), "decoded.h5"), kWindow);
}

json measure_teacher_forced(const Dump& candidate) {
  const fixtures::TempDirectory folder;
  return oracle::teacher_forced_measures(dump_of("reference", "chained").write(folder.path(), "reference.h5"),
                                         candidate.write(folder.path(), "candidate.h5"));
}

double number(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// A sum in another order than by hand.
auto about(double value) { return Approx(value).epsilon(1e-13).margin(1e-15); }

}  // namespace

TEST_CASE("means over prompts count tokens, not prompts") {
  const json measured = measure_chained(chained());
  const json& a = measured.at("end_to_end").at(0);
  const json& b = measured.at("end_to_end").at(1);
  CHECK(number(a.at("kl_mean")) == about(kLn3 / 2));
  CHECK(number(b.at("kl_mean")) == about(kLn3 / 6));
  CHECK(number(measured.at("kl_mean")) == about(kLn3 / 4));  // of prompts it would be ln 3 / 3
  CHECK(number(a.at("top1")) == 0);
  CHECK(number(b.at("top1")) == about(2.0 / 3));
  CHECK(number(measured.at("top1")) == about(1.0 / 2));  // 1/3
  CHECK(number(a.at("sets_same")) == about(1.0 / 2));
  CHECK(number(b.at("sets_same")) == about(5.0 / 6));
  CHECK(number(measured.at("sets_same")) == about(3.0 / 4));  // 2/3
}

TEST_CASE("a row of a prompt has its worst position, the head's input and what the caches change") {
  const json measured = measure_chained(chained());
  CHECK(measured.at("not_finite").is_null());
  const json& a = measured.at("end_to_end").at(0);
  const json& b = measured.at("end_to_end").at(1);
  CHECK(a.at("prompt") == "a");
  CHECK(a.at("T") == 1);
  CHECK(number(a.at("hidden_rel")) == 0);
  CHECK(a.at("decode_max_diff").is_null());  // no tail of one token
  CHECK(b.at("T") == 3);
  CHECK(number(b.at("kl_max")) == about(kLn3 / 2));
  CHECK(number(b.at("kl_p95")) == about(0.9 * kLn3 / 2));  // of 0, 0, ln 3 / 2 at 1.9
  CHECK(b.at("worst_kl_pos") == 2);
  CHECK(number(b.at("top5")) == 1);  // both of two tokens
  CHECK(number(b.at("max_abs_logit")) == about(kLn3));
  CHECK(number(b.at("hidden_rel")) == about(1 / std::sqrt(3.0)));
  CHECK(number(b.at("decode_max_diff")) == about(0.25));
}

TEST_CASE("bands have the prefill's numbers, and of the caches those that schedule bands reached") {
  const json measured = measure_chained(chained());
  CHECK(measured.at("bands").at(0).at("bands").size() == 1);
  const json& bands = measured.at("bands").at(1).at("bands");
  REQUIRE(bands.size() == 3);  // [0, 1), [1, window), [window, 3)
  const auto check = [&](std::size_t i, double kl, double top1) {
    CHECK(bands.at(i).at("first") == i);
    CHECK(bands.at(i).at("end") == i + 1);
    CHECK(number(bands.at(i).at("kl_mean")) == about(kl));
    CHECK(number(bands.at(i).at("top1")) == top1);
  };
  check(0, 0, 1);
  check(1, 0, 1);
  check(2, kLn3 / 2, 0);
  CHECK(number(bands.at(0).at("decode_kl_mean")) == about(0));
  CHECK(number(bands.at(1).at("decode_kl_mean")) == about(kLn3 / 2));
  CHECK(number(bands.at(1).at("decode_top1")) == 0);
  CHECK(bands.at(2).at("decode_kl_mean").is_null());
}

TEST_CASE("a schedule is compared with the same engine's prefill, not with the reference") {
  const json rows = measure_chained(chained()).at("decode");
  REQUIRE(rows.size() == 3);
  for (const json& row : rows) CHECK(row.at("prompt") == "b");
  const auto of = [&](const std::string& schedule) {
    for (const json& row : rows) {
      if (row.at("schedule") == schedule) return row;
    }
    return json();
  };
  CHECK(of("head").at("n_prefilled") == 0);
  CHECK(of("head").at("n_rows") == 3);
  CHECK(number(of("head").at("max_abs_logit")) == 0);
  CHECK(of("tail").at("n_prefilled") == 1);
  CHECK(of("tail").at("n_rows") == 2);
  CHECK(number(of("tail").at("max_abs_logit")) == about(0.25));
  CHECK(number(of("bands").at("kl_max")) == about(kLn3 / 2));
  CHECK(number(of("bands").at("top1")) == about(1.0 / 2));
}

TEST_CASE("teacher-forced rows are layers times prompts, each counted once") {
  const json measured = measure_teacher_forced(teacher_forced());
  const double root = std::sqrt(3.0);
  REQUIRE(measured.at("rows").size() == 4);
  const auto row = [&](std::size_t i, int layer, const char* name, double rel, double max_abs, double same, int n) {
    const json& is = measured.at("rows").at(i);
    CHECK(is.at("layer") == layer);
    CHECK(is.at("prompt") == name);
    CHECK(number(is.at("rel")) == about(rel));
    CHECK(number(is.at("max_abs")) == max_abs);
    CHECK(number(is.at("sets_same")) == about(same));
    CHECK(is.at("n_differing") == n);
  };
  row(0, 0, "a", 0, 0, 1, 0);
  row(1, 1, "a", 1, 4, 0, 1);
  row(2, 0, "b", 1 / (5 * root), 1, 1, 0);
  row(3, 1, "b", 1 / root, 4, 2.0 / 3, 1);
  CHECK(number(measured.at("max_rel")) == 1);
  CHECK(measured.at("max_rel_at") == json{{"layer", 1}, {"prompt", "a"}});
  CHECK(number(measured.at("median_rel")) == about(0.6 / root));
  CHECK(number(measured.at("sets_same")) == about(2.0 / 3));
  CHECK(number(measured.at("sets_same_min")) == 0);
  CHECK(measured.at("n_pairs") == 8);
  CHECK(measured.at("n_differing") == 2);
}

TEST_CASE("residual maxima are of three positions and of the middle from 16 on") {
  Dump dump = dump_of("reference", "chained");
  dump.prompts = {prompt("long", 18)};
  for (std::size_t t = 0; t < 18; ++t) set(dump, "long", "layers/01/residual", t, 0, -1 - static_cast<double>(t));
  const fixtures::TempDirectory folder;
  const json measured = oracle::residual_measures(dump.write(folder.path(), "reference.h5"));
  CHECK(measured == json{{{"prompt", "long"},
                          {"rows",
                           {{{"layer", 0}, {"first", {4.0, 4.0, 4.0}}, {"median_from_16", 4.0}},
                            {{"layer", 1}, {"first", {1.0, 2.0, 3.0}}, {"median_from_16", 17.5}}}}}});
}

TEST_CASE("another number anywhere in the dumps moves what is said of it, and NaN is told with its place") {
  const json before = measure_chained(chained());
  CHECK(measure_chained(chained()) == before);
  const auto changes = [&](const std::string& path, std::size_t row, double x, double y) {
    Dump other = chained();
    set(other, "b", path, row, x, y);
    return measure_chained(other) != before;
  };
  CHECK(changes("logits", 0, kLn3, 0.5));
  CHECK(changes("final_norm", 1, 3, 4.5));
  CHECK(changes("layers/00/expert_ids", 0, 0, 7));
  CHECK_FALSE(changes("layers/00/expert_ids", 0, 1, 0));  // the order of a set is nothing
  CHECK_FALSE(changes("layers/00/residual", 0, 0, 0));    // that is teacher-forced's
  Dump cached = decoded();
  set(cached, "b", "decode/tail/logits", 1, 0, kLn3);
  CHECK(number(measure_chained(chained(), cached).at("end_to_end").at(1).at("decode_max_diff")) == 0);

  Dump broken = chained();
  broken.prompt("b").at("logits", 1, 1) = std::numeric_limits<double>::quiet_NaN();
  const json measured = measure_chained(broken);
  CHECK_THAT(measured.at("not_finite").get<std::string>(), ContainsSubstring("b") && ContainsSubstring("1"));
  CHECK(measured.at("kl_mean").is_null());
  CHECK(measured.at("end_to_end").at(1).at("kl_mean").is_null());
  CHECK(number(measured.at("end_to_end").at(0).at("kl_mean")) == about(kLn3 / 2));

  Dump other_tokens = chained();
  other_tokens.prompt("b").tokens[1] = 2;
  CHECK_THROWS_WITH(measure_chained(other_tokens), ContainsSubstring("candidate.h5"));
}

TEST_CASE("measured by hand, tables follow the schema and stand in the published layout") {
  const std::string sha(64, '0');
  json variant = measure_chained(chained());
  variant.update({{"name", "mixed"},
                  {"precision", "native"},
                  {"status", "measured"},
                  {"reason", nullptr},
                  {"wall_s", json::object()},
                  {"teacher_forced", measure_teacher_forced(teacher_forced())}});
  const fixtures::TempDirectory folder;
  const auto reference = dump_of("reference", "chained").write(folder.path(), "reference.h5");
  json tables = {
      {"format", "kalibri-tables"},
      {"version", 1},
      {"program", {{"name", "kalibri"}, {"version", "1"}, {"isa", "scalar"}, {"sha256", sha}}},
      {"options", json::object()},
      {"checkpoint",
       {{"name", "by hand"}, {"model_type", "kolibri1"}, {"fingerprint", "f"}, {"n_layers", 2}, {"window", kWindow}}},
      {"prompts", json::array()},
      {"reference",
       {{"file", "reference.h5"},
        {"sha256", sha},
        {"program_sha256", nullptr},
        {"producer", "reference"},
        {"producer_version", "1"},
        {"precision", "f64"},
        {"checkpoint_fingerprint", "f"},
        {"wall_s", 0.5},
        {"peak_rss_bytes", 1000}}},
      {"residual_max", oracle::residual_measures(reference)},
      {"variants", {variant}},
      {"peak_rss_bytes", 1},
      {"published", nullptr}};
  for (const auto& data : dump_of("reference", "chained").prompts) {
    tables["prompts"].push_back(
        {{"name", data.name}, {"T", data.tokens.size()}, {"text_sha256", ""}, {"tokens_sha256", sha}});
  }
  REQUIRE(reports::tables_error(tables).empty());
  const std::string text = reports::tables_markdown(tables);
  for (const char* line : {
           "| variant | KL mean | top-1 | expert sets |",
           "| mixed | 0.275 | 0.5000 | 0.7500 |",                      // ln 3 / 4
           "| mixed | 1 | 0.346 | 0.6667 | 0.0000 | 2 |",              // teacher-forced
           "| a | 0.0000 | 1 | 0.549 | 0.549 | 0.549 | 0.5000 | - |",  // end to end
           "| b | 0.6667 | 1 | 0.183 | 0.494 | 0.549 | 0.8333 | 0.25 |",
           "| b | \\[1, 2) | 0 | 1 | 0.549 | 0.0000 |",
           "| b | \\[2, 3) | 0.549 | 0.0000 | - | - |",
           "| b | head | 0 | 3 | 0 | 0 | 1 | 0 |",
       }) {
    CHECK_THAT(text, ContainsSubstring(line));
  }
  tables["variants"][0]["end_to_end"][1]["top1"] = 1.5;
  CHECK_THAT(reports::tables_error(tables), ContainsSubstring("/variants/0"));
}

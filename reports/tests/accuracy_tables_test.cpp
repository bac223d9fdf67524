// tables.json: its schema, the published figures, and that each measured figure stands beside the published one of the
// same variant, prompt and band.
#include "reports/accuracy_tables.hpp"

#include "fixtures/catch.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

namespace {

const std::string kSha(64, '0');

/// A variant with every member, of one prompt with two bands.
json variant(const std::string& name) {
  const json row = {{"prompt", "en_long"}, {"T", 600},           {"top1", 0.5},       {"top5", 0.25},
                    {"kl_mean", 0.125},    {"kl_p95", 1},        {"kl_max", 2},       {"hidden_rel", 3},
                    {"sets_same", 0.75},   {"max_abs_logit", 4}, {"worst_kl_pos", 5}, {"decode_max_diff", 0}};
  const auto band = [](int first, int end, double kl) {
    return json{{"first", first}, {"end", end},           {"kl_mean", kl},
                {"top1", 1},      {"decode_kl_mean", {}}, {"decode_top1", {}}};
  };
  return {
      {"name", name},
      {"precision", "exact"},
      {"status", "measured"},
      {"reason", nullptr},
      {"wall_s", {{"chained", 1.5}}},
      {"kl_mean", 0.125},
      {"top1", 0.5},
      {"sets_same", 0.75},
      {"not_finite", nullptr},
      {"teacher_forced",
       {{"rows", json::array()},
        {"max_rel", 0.0625},
        {"max_rel_at", {{"layer", 3}, {"prompt", "en_long"}}},
        {"median_rel", 0.03125},
        {"sets_same", 1},
        {"sets_same_min", 1},
        {"n_pairs", 600},
        {"n_differing", 0}}},
      {"end_to_end", {row}},
      {"bands",
       {{{"prompt", "en_long"}, {"T", 600}, {"bands", {band(0, 1, 0.5), band(64, 300, 0.375), band(513, 600, 9)}}}}},
      {"decode",
       {{{"prompt", "en_long"},
         {"schedule", "tail"},
         {"n_prefilled", 592},
         {"n_rows", 8},
         {"kl_mean", 0},
         {"kl_max", 0},
         {"top1", 1},
         {"max_abs_logit", 0}}}}};
}

json example(const std::string& model_type = "kolibri1") {
  return {{"format", "kalibri-tables"},
          {"version", 1},
          {"program", {{"name", "kalibri"}, {"version", "1"}, {"isa", "scalar"}, {"sha256", kSha}}},
          {"options", json::object()},
          {"checkpoint",
           {{"name", "a|b"}, {"model_type", model_type}, {"fingerprint", "f"}, {"n_layers", 5}, {"window", 513}}},
          {"prompts", {{{"name", "en_long"}, {"T", 600}, {"text_sha256", ""}, {"tokens_sha256", kSha}}}},
          {"reference",
           {{"file", "reference.h5"},
            {"sha256", kSha},
            {"program_sha256", nullptr},
            {"producer", "kalibri-reference"},
            {"producer_version", "1"},
            {"precision", "reference-f32"},
            {"checkpoint_fingerprint", "f"},
            {"wall_s", 1},
            {"peak_rss_bytes", 1}}},
          {"residual_max",
           {{{"prompt", "en_long"}, {"rows", {{{"layer", 24}, {"first", {1, 2, 3}}, {"median_from_16", 0.25}}}}}}},
          {"variants", {variant("bf16"), variant("4bit")}},
          {"peak_rss_bytes", 1},
          {"published", reports::published_figures(model_type)}};
}

std::string error_after(const std::string& pointer, const json& value) {
  json tables = example();
  tables[json::json_pointer(pointer)] = value;
  return reports::tables_error(tables);
}

}  // namespace

TEST_CASE("Tables with the published figures follow the schema") {
  REQUIRE_FALSE(example().at("published").is_null());
  REQUIRE(reports::tables_error(example()).empty());
  REQUIRE(reports::tables_error(example("qwen4_exp")).empty());
}

TEST_CASE("Tables are refused with the member that is wrong") {
  REQUIRE_THAT(error_after("/format", "kalibri-report"), ContainsSubstring("/format"));
  REQUIRE_THAT(error_after("/program/sha256", "0"), ContainsSubstring("/program/sha256"));
  REQUIRE_THAT(error_after("/variants/1/end_to_end/0/top1", 1.5), ContainsSubstring("/variants/1"));
  REQUIRE_THAT(error_after("/variants/0/kl", 1), ContainsSubstring("/variants/0"));
  REQUIRE_THAT(error_after("/variants/0/status", "held"), ContainsSubstring("/variants/0"));
  REQUIRE_THAT(error_after("/published/variants/2/kl_mean", "0.02"), ContainsSubstring("/published"));
}

TEST_CASE("A measured variant lacks nothing, and one that was not run has a reason") {
  json tables = example();
  tables["variants"][1].erase("bands");
  REQUIRE_THAT(reports::tables_error(tables), ContainsSubstring("/variants/1"));
  tables["variants"][1]["status"] = "not_run";
  REQUIRE_THAT(reports::tables_error(tables), ContainsSubstring("/variants/1"));
  tables["variants"][1]["reason"] = "the disk is full";
  REQUIRE(reports::tables_error(tables).empty());
  REQUIRE_THAT(reports::tables_markdown(tables), ContainsSubstring("- 4bit: not run: the disk is full"));
  REQUIRE_THAT(reports::tables_terminal(tables, false), ContainsSubstring("4bit: not run: the disk is full"));
}

TEST_CASE("The published figures are those of the source, prompt by prompt") {
  const json published = reports::published_figures("kolibri1");
  std::size_t n_tokens = 0;
  for (const json& prompt : published.at("prompts")) n_tokens += prompt.at("T").get<std::size_t>();
  REQUIRE(n_tokens == 1282);
  REQUIRE(published.at("variants").size() == 6);
  for (const json& one : published.at("variants")) {
    double kl = 0, tokens = 0;
    for (const json& row : one.at("end_to_end")) {
      kl += row.at("kl_mean").get<double>() * row.at("T").get<double>();
      tokens += row.at("T").get<double>();
    }
    INFO(one.at("name"));
    REQUIRE(tokens == 1282);
    REQUIRE(one.at("kl_mean").get<double>() == Approx(kl / tokens));
  }
}

TEST_CASE("A measured figure stands beside the published one of its variant and prompt") {
  const std::string text = reports::tables_markdown(example());
  CHECK_THAT(text,
             ContainsSubstring("| variant | KL mean | published | top-1 | published | expert sets | published |"));
  CHECK_THAT(text, ContainsSubstring("| bf16 | 0.125 | 0.0262 | 0.5000 | 0.9485 | 0.7500 | 0.8120 |"));
  CHECK_THAT(text, ContainsSubstring("| 4bit | 0.125 | 0.125 | 0.5000 | 0.8736 | 0.7500 | - |"));
  CHECK_THAT(text, ContainsSubstring("| bf16 | 0.0625 | 0.0382 | 0.0312 | 4.17e-03 |"));
  CHECK_THAT(text,
             ContainsSubstring("| en\\_long | 0.5000 | 0.9676 | 0.2500 | 0.9570 | 0.125 | 8.20e-03 | 1 | 0.022 |"));
  CHECK_THAT(text, ContainsSubstring("| en\\_long | 24 | 1 | 1.70e+03 | 2 | 56 | 3 | 58 | 0.25 | 47 |"));
  CHECK_THAT(text, ContainsSubstring("Published: the real Kolibri 1 of 50 layers"));
  CHECK_THAT(text, ContainsSubstring("a\\|b"));
}

TEST_CASE("A band stands beside the published one of the same positions alone, the last beside the last") {
  const std::string text = reports::tables_markdown(example());
  CHECK_THAT(text, ContainsSubstring("| en\\_long | \\[0, 1) | 0.5 | 0.0691 |"));
  CHECK_THAT(text, ContainsSubstring("| en\\_long | \\[64, 300) | 0.375 | - |"));
  CHECK_THAT(text, ContainsSubstring("| en\\_long | \\[513, 600) | 9 | 0.0967 |"));
}

TEST_CASE("A family without published figures has no column for them") {
  const json tables = example("qwen4_exp");
  REQUIRE(tables.at("published").is_null());
  const std::string text = reports::tables_markdown(tables) + reports::tables_terminal(tables, false);
  CHECK_THAT(text, ContainsSubstring("| bf16 | 0.125 | 0.5000 | 0.7500 |"));
  CHECK(text.find("ublished") == std::string::npos);
}

#include "oracle/verdict/report.hpp"

#include "oracle/verdict/floor.hpp"
#include "oracle/verdict/rules.hpp"

namespace kalibri::oracle {

namespace {

using nlohmann::json;

/// A foreign dump's options may be any text.
json parsed_options(const std::string& text) {
  json options = json::parse(text, nullptr, false);
  if (options.is_object()) return options;
  return text.empty() ? json::object() : json{{"text", text}};
}

json describe(const std::string& role, const dump::Reader& dump) {
  const dump::Header& header = dump.header();
  return {{"role", role},
          {"file", dump.path().filename().string()},
          {"mode", header.mode},
          {"element_type", element_type(dump)},
          {"producer", header.producer},
          {"producer_version", header.producer_version},
          {"precision", header.precision},
          {"checkpoint_fingerprint", header.checkpoint_fingerprint},
          {"options", parsed_options(header.options)},
          {"peak_rss_bytes", dump.peak_rss_bytes()},
          {"wall_s", dump.wall_s()}};
}

}  // namespace

json make_report(const RunDescription& run, const Dumps& dumps) {
  Assessment assessment = assess(dumps, run.layers, run.window);
  const auto all = named(dumps);
  const dump::Reader& first = *all.front().second;
  json report = {{"format", "kalibri-report"},
                 {"version", 1},
                 {"program", {{"name", "kalibri"}, {"version", run.version}, {"isa", run.isa}}},
                 {"command", run.command},
                 {"options", run.options},
                 {"checkpoint",
                  {{"name", run.checkpoint},
                   {"model_type", first.header().model_type},
                   {"fingerprint", first.header().checkpoint_fingerprint},
                   {"window", run.window > 0 ? json(run.window) : json()}}},
                 {"prompts", json::array()},
                 {"dumps", json::array()},
                 {"rules", rules_json()},
                 {"floors", std::move(assessment.floors)},
                 {"comparisons", std::move(assessment.comparisons)},
                 {"findings", json::array()},
                 {"verdict", to_json(judge(assessment.findings))}};
  for (const dump::PromptInfo& prompt : first.prompts()) {
    report["prompts"].push_back(
        {{"name", prompt.name}, {"T", prompt.tokens.size()}, {"text_sha256", prompt.text_sha256}});
  }
  for (const auto& [role, dump] : all) report["dumps"].push_back(describe(role, *dump));
  for (const Finding& finding : assessment.findings) report["findings"].push_back(to_json(finding));
  return report;
}

}  // namespace kalibri::oracle

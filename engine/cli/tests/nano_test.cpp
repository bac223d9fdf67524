// The nano models of the repository: that they verify, and that they recall by the layers that look far back.
#include <cmath>
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/corpus/corpus.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::cli::test {
namespace {

namespace fs = std::filesystem;
using fixtures::Family;

struct Nano {
  Family family;
  std::string name;
  std::string mask;  // the defect with which no layer looks farther than window or budget
  double calls = 0;  // share of right tool calls that was measured on 400 prompts (fixtures/nano/README.md)
};

const std::vector<Nano> kModels = {{Family::kolibri1, "kolibri1", "window_on_full_layers", 0.835},
                                   {Family::qwen4_exp, "qwen4_exp", "sparse_nearest_blocks", 0.85}};

std::string directory(const Nano& nano) { return KALIBRI_SOURCE_DIR "/fixtures/nano/" + nano.name; }

/// The row of all of `kalibri score` over 20 held-out prompts of a kind in each language.
nlohmann::json score(const Nano& nano, fixtures::DocumentKind kind, const std::string& mask = "") {
  const fixtures::TempDirectory folder;
  std::string lines;
  for (const std::string language : {"de", "en"}) {
    for (std::uint64_t n = 0; n < 20; ++n) {
      const fixtures::Document document =
          fixtures::held_out_document({nano.family, /*seed=*/1, /*progress=*/1}, kind, language, n);
      nlohmann::json line = {{"kind", fixtures::kDocumentKinds[static_cast<std::size_t>(kind)]},
                             {"language", language},
                             {"text", document.text.substr(0, document.answer_begin)},
                             {"answer", document.text.substr(document.answer_begin)}};
      for (const std::string& tool : document.tools) line["tools"].push_back(nlohmann::json::parse(tool));
      lines += line.dump() + "\n";
    }
  }
  const fs::path file = folder.path() / "held-out.jsonl";
  fixtures::write_file(file, lines);
  std::vector<std::string> arguments = {"score", directory(nano), "--prompts", file.string(), "--json"};
  if (!mask.empty()) arguments.insert(arguments.begin(), {"--mutant", mask});
  const auto result =
      fixtures::run_program(fs::path(KALIBRI_BIN_DIR) / (mask.empty() ? "kalibri" : "kalibri-mutants"), arguments);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  return nlohmann::json::parse(result.out).back();
}

TEST_CASE("a nano model recalls what lies beyond window and budget, and does not with the far layers masked") {
  for (const Nano& nano : kModels) {
    INFO(nano.name);
    CHECK(score(nano, fixtures::DocumentKind::recall).at("exact") >= 0.9);
    CHECK(score(nano, fixtures::DocumentKind::recall, nano.mask).at("exact") <= 0.3);
  }
}

TEST_CASE("a nano model's replies and calls have their form") {
  for (const Nano& nano : kModels) {
    INFO(nano.name);
    CHECK(score(nano, fixtures::DocumentKind::chat).at("form") >= 0.95);
    const double chance = 3 * std::sqrt(nano.calls * (1 - nano.calls) / 40);  // of 40 prompts
    CHECK(score(nano, fixtures::DocumentKind::tool).at("calls") >= nano.calls - chance);
  }
}

TEST_CASE("the nano models hold in a verification of the texts that verify runs by default") {
  for (const Nano& nano : kModels) {
    const fixtures::TempDirectory folder;
    const auto result = fixtures::run_program(fs::path(KALIBRI_BIN_DIR) / "kalibri",
                                              {"verify", directory(nano), "--out", (folder.path() / "out").string()});
    INFO(result.out << result.err);
    CHECK(result.exit_status == 0);
    const auto report = nlohmann::json::parse(fixtures::read_file(folder.path() / "out" / "report.json"));
    CHECK(report.at("options").at("prompt_source").is_string());
    for (const nlohmann::json& finding : report.at("findings")) {
      CHECK(finding.at("status") != "mistrusted");
      CHECK(finding.at("status") != "not_run");
    }
  }
}

}  // namespace
}  // namespace kalibri::cli::test

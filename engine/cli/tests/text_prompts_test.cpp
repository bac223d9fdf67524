// Prompts as text, from outside: the ids are the tokenizer's, the dumps of both sides name the text, verify runs the
// program's own texts, and what cannot be used is refused.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cli/default_prompts.hpp"
#include "engine/text/tokenizer.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/corpus/bpe_trainer.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "fixtures/tests/sha256.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::Family;
using fixtures::RunResult;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocab = 1536;
const fs::path kTexts = KALIBRI_SOURCE_DIR "/fixtures/prompts";
const std::vector<std::string> kNames = {"de_short", "en_short", "de_code", "en_long", "de_long"};

RunResult kalibri_program(const std::vector<std::string>& arguments) {
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", arguments);
}

/// A small checkpoint with a tokenizer.json of its family, and a folder for files.
struct Scene {
  explicit Scene(Family family = Family::kolibri1) {
    if (family == Family::kolibri1) {
      fixtures::Kolibri1Shape shape = fixtures::kolibri1_tiny();
      shape.vocab_size = kVocab;
      fixtures::make_kolibri1(checkpoint, shape, {});
    } else {
      fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
      shape.vocab_size = kVocab;
      fixtures::make_qwen4_exp(checkpoint, shape, {});
    }
    write_tokenizer(family, 1200);
  }

  void write_tokenizer(Family family, std::size_t n_merges) const {
    fixtures::PieceCounts pieces(family);
    for (const cli::NamedText& text : cli::default_texts()) pieces.add(text.text);
    fixtures::write_file(checkpoint / "tokenizer.json",
                         fixtures::tokenizer_json(family, fixtures::train_merges(pieces.counts(), n_merges)));
  }

  /// A file of that name and text.
  [[nodiscard]] std::string text(const std::string& name, const std::string& bytes) const {
    const fs::path path = folder.path() / name;
    fs::create_directories(path.parent_path());
    fixtures::write_file(path, bytes);
    return path.string();
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder.path() / name; }

  /// `kalibri dump` of prompts or tokens, given by `arguments`.
  [[nodiscard]] dump::Reader dump(const std::string& name, const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {"dump", checkpoint, "-o", path(name)};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const RunResult run = kalibri_program(all);
    INFO(run.err);
    REQUIRE(run.exit_status == 0);
    return dump::Reader(path(name));
  }

  fixtures::TempDirectory folder;
  fs::path checkpoint = folder.path() / "checkpoint";
};

json report_of(const fs::path& directory) { return json::parse(fixtures::read_file(directory / "report.json")); }

/// The status of the finding, and its text.
std::pair<std::string, std::string> finding(const json& report, const std::string& id) {
  for (const json& finding : report.at("findings")) {
    if (finding.at("id") == id) return {finding.at("status"), finding.at("text")};
  }
  FAIL("no finding " << id);
  return {};
}

model::ModelInfo info_of(std::int64_t max_positions, std::int64_t window, std::int64_t chooses_from) {
  model::ModelInfo info;
  info.vocab_size = kVocab;
  info.max_positions = max_positions;
  info.window = window;
  info.chooses_from = chooses_from;
  return info;
}

std::vector<std::string> names_of(const std::vector<cli::Prompt>& prompts) {
  std::vector<std::string> names;
  for (const cli::Prompt& prompt : prompts) names.push_back(prompt.name);
  return names;
}

}  // namespace

TEST_CASE("A dump of texts holds the tokenizer's ids and names each text by its SHA-256") {
  const Scene scene;
  const auto tokenizer = text::Tokenizer::load(scene.checkpoint);
  const std::vector<std::string> texts = {"Der Leuchtturm  steht.\n ", "<|endoftext|> in the text is that token"};
  const std::string one = scene.text("one.txt", texts[0]);
  const std::string two = scene.text("other folder/two.v2.md", texts[1]);
  const dump::Reader dump = scene.dump("out.h5", {"--prompts", one, two});
  REQUIRE(dump.prompts().size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const dump::PromptInfo* prompt = dump.find_prompt(i == 0 ? "one" : "two.v2");
    REQUIRE(prompt != nullptr);
    CHECK(prompt->tokens == tokenizer.encode(texts[i]));
    CHECK(prompt->text_sha256 == fixtures::sha256(texts[i]));
  }
  const json options = json::parse(dump.header().options);
  CHECK(options.at("prompts") == json{one, two});
  CHECK(options.at("tokens") == "");
  const std::string changed = scene.text("one.txt", "Der Leuchtturm  steht.\n");
  const dump::Reader other = scene.dump("other.h5", {"--prompts", changed});
  CHECK(other.prompts().front().text_sha256 != fixtures::sha256(texts[0]));
  CHECK(other.prompts().front().tokens != dump.find_prompt("one")->tokens);
}

TEST_CASE("A text's name travels with its ids, and the same ids of another text are mistrusted") {
  const Scene scene;
  const std::string text = "A lighthouse keeper";
  const dump::Reader from_text = scene.dump("text.h5", {"--prompts", scene.text("p.txt", text)});
  const auto dump_ids = [&](const std::string& name, const json& prompt) {
    return scene.dump(name + ".h5", {"--tokens", scene.text(name + ".json", json{{"p", prompt}}.dump())});
  };
  const json ids = from_text.prompts().front().tokens;
  const auto identity = [&](const std::string& name) {
    const RunResult run = kalibri_program({"compare", scene.path("text.h5"), scene.path(name + ".h5"), "--json", "-"});
    INFO(run.err);
    const json report = json::parse(run.out);
    for (const json& finding : report.at("findings")) {
      const std::string id = finding.at("id");
      if (id.ends_with("/identity") && !id.starts_with("floor")) {
        return std::pair<std::string, std::string>(finding.at("status"), finding.at("text"));
      }
    }
    FAIL("no identity");
    return std::pair<std::string, std::string>();
  };
  const std::string same = fixtures::sha256(text), other = fixtures::sha256("another text");
  CHECK(dump_ids("same", {{"tokens", ids}, {"text_sha256", same}}).prompts().front().text_sha256 == same);
  CHECK(identity("same").first == "held");
  CHECK(dump_ids("bare", ids).prompts().front().text_sha256.empty());
  CHECK(identity("bare").first == "held");
  dump_ids("other", {{"tokens", ids}, {"text_sha256", other}});
  CHECK(identity("other").first == "mistrusted");
  CHECK_THAT(identity("other").second, ContainsSubstring("prompt p is of another text"));
}

TEST_CASE("Texts that cannot be used are refused with status 2, named, and leave no file") {
  const Scene scene;
  const std::string good = scene.text("good.txt", "good");
  const std::string tokens = scene.text("tokens.json", R"({"p": [1]})");
  std::string words = "w";
  for (int i = 0; i < 5000; ++i) words += " w";
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"--prompts", scene.text("empty.txt", "")}, "empty.txt: is empty"},
      {{"--prompts", scene.text("latin1.txt",
                                "h\xf6"
                                "chste")},
       "latin1.txt: is no UTF-8 (byte 1)"},
      {{"--prompts", scene.text("cut.txt", "h\xc3")}, "cut.txt: is no UTF-8 (byte 1)"},
      {{"--prompts", scene.path("nowhere.txt")}, "nowhere.txt: is not there"},
      {{"--prompts", scene.folder.path()}, "is no regular file"},
      {{"--prompts", "/dev/zero"}, "/dev/zero: is no regular file"},
      {{"--prompts", good, scene.text("twin/good.md", "twin")}, "good.md: is prompt 'good' like "},
      {{"--prompts", scene.text("a\nb.txt", "text")}, "rename the file"},
      {{"--prompts", scene.text("a\xff.txt", "text")}, "rename the file"},
      {{"--prompts", scene.text("long.txt", words)}, "prompt 'long': "},
      {{"--prompts", good, "--tokens", tokens}, "--tokens excludes --prompts"},
      {{}, "expected either --tokens FILE.json or --prompts FILE.txt..."},
      {{"--tokens", scene.text("object.json", R"({"p": {"tokens": [1]}})")}, "prompt 'p' is not a list"},
      {{"--tokens", scene.text("hash.json", R"({"p": {"tokens": [1], "text_sha256": "AB"}})")}, "'AB' is no SHA-256"},
      {{"--tokens", scene.text("twice.json", R"({"p": {"tokens": [1], "tokens": [2]}})")}, "'tokens' of a prompt"}};
  const std::string out = scene.path("out.h5");
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& message) {
    std::vector<std::string> all = {"dump", scene.checkpoint, "-o", out};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const RunResult run = kalibri_program(all);
    INFO(message << "\n" << run.err);
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring(message));
    CHECK_FALSE(fs::exists(out));
  };
  for (const Case& c : cases) refused(c.arguments, c.message);
  fs::resize_file(scene.text("huge.txt", "x"), (std::uint64_t{64} << 20) + 1);  // a hole
  refused({"--prompts", scene.path("huge.txt")}, "huge.txt: 67108865 bytes, expected at most 67108864");
  const RunResult itself = kalibri_program({"dump", scene.checkpoint, "--prompts", good, "-o", good});
  CHECK(itself.exit_status == 2);
  CHECK_THAT(itself.err, ContainsSubstring("is also --prompts"));
  scene.write_tokenizer(Family::kolibri1, 1500);
  refused({"--prompts", good}, "expected at most 1535 (config.json vocab_size)");
  fixtures::write_file(scene.checkpoint / "tokenizer.json", "{");
  refused({"--prompts", good}, "tokenizer.json");
  fs::remove(scene.checkpoint / "tokenizer.json");
  refused({"--prompts", good}, "tokenizer.json: is not there, and texts become ids");
}

TEST_CASE("Without prompts, the program's texts are run, and a seeded one where they are too short to show a choice") {
  const Scene scene;
  const auto chosen = [&](const model::ModelInfo& info) {
    return cli::default_prompts(scene.checkpoint, info, nullptr);
  };
  const auto all = chosen(info_of(4096, 7, 0));
  CHECK(names_of(all.prompts) == kNames);
  std::int64_t longest = 0;
  for (const cli::Prompt& prompt : all.prompts) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.tokens.size()));
    CHECK(prompt.text_sha256 == fixtures::sha256(fixtures::read_file(kTexts / (prompt.name + ".txt"))));
  }
  const auto with_seeded = [&](std::int64_t n) {
    std::vector<std::string> names = kNames;
    names.push_back("seeded-" + std::to_string(n));
    return names;
  };
  CHECK(names_of(chosen(info_of(4096, longest - 1, 0)).prompts) == kNames);
  CHECK(names_of(chosen(info_of(1 << 20, longest, 0)).prompts) == with_seeded(2 * longest + 5));
  CHECK(names_of(chosen(info_of(1 << 20, 7, longest)).prompts) == kNames);
  const auto extended = chosen(info_of(1 << 20, 7, longest + 1));
  CHECK(names_of(extended.prompts) == with_seeded(longest + 1));
  CHECK_THAT(extended.source, ContainsSubstring("SplitMix64"));
  CHECK_FALSE(all.source.find("SplitMix64") != std::string::npos);
  const auto few = chosen(info_of(200, 7, 0)).prompts;  // the long ones do not fit
  CHECK(names_of(few) == std::vector<std::string>(kNames.begin(), kNames.begin() + 3));
  fs::remove(scene.checkpoint / "tokenizer.json");
  CHECK(chosen(info_of(4096, 7, 0)).prompts.front().name == "seeded-1");
}

#ifdef KALIBRI_HAS_REFERENCE
TEST_CASE("verify runs the program's texts of a checkpoint with a tokenizer, and both sides name them") {
  const Scene scene;
  const auto tokenizer = text::Tokenizer::load(scene.checkpoint);
  const RunResult run = kalibri_program({"verify", scene.checkpoint, "--out", scene.path("out")});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  const json report = report_of(scene.path("out"));
  CHECK(report.at("options").at("prompts") == json::array());
  CHECK(report.at("options").at("prompt_source") ==
        "the program's own texts, as the checkpoint's tokenizer.json has them");
  const dump::Reader reference(scene.path("out/reference.h5")), engine(scene.path("out/engine.h5"));
  REQUIRE(report.at("prompts").size() == kNames.size());
  for (const json& prompt : report.at("prompts")) {
    const std::string name = prompt.at("name");
    CHECK(std::ranges::find(kNames, name) != kNames.end());
    const std::string text = fixtures::read_file(kTexts / (name + ".txt"));
    CHECK(prompt.at("text_sha256") == fixtures::sha256(text));
    for (const dump::Reader* dump : {&reference, &engine}) {
      CHECK(dump->find_prompt(name)->tokens == tokenizer.encode(text));
      CHECK(dump->find_prompt(name)->text_sha256 == fixtures::sha256(text));
    }
  }
  CHECK(finding(report, "chained/identity").first == "held");
}

TEST_CASE("verify takes texts for the other family too, and sees a reference that ran other ids or another text") {
  const Scene scene(Family::qwen4_exp);
  const std::string text = scene.text("texts/p.txt", fixtures::read_file(kTexts / "en_long.txt").substr(0, 300));
  const auto verify = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"verify", scene.checkpoint, "--out", scene.path(out), "--prompts", text};
    all.insert(all.end(), more.begin(), more.end());
    return kalibri_program(all);
  };
  const RunResult run = verify("out", {});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  CHECK(report_of(scene.path("out")).at("options").at("prompts") == json{text});

  const RunResult inside =
      kalibri_program({"verify", scene.checkpoint, "--out", scene.path("texts"), "--prompts", text});
  CHECK(inside.exit_status == 2);
  CHECK_THAT(inside.err, ContainsSubstring("lies in the folder that this run writes"));

  // Reference programs that are given another first id, or told of another text.
  const auto altered = [&](const std::string& name, const std::string& edit) {
    const std::string script = scene.text(name, "#!/bin/sh\nset -e\nsed -i '" + edit + "' \"$4\"\nexec '" +
                                                    KALIBRI_BIN_DIR "/kalibri-reference' \"$@\"\n");
    fs::permissions(script, fs::perms::owner_all);
    return script;
  };
  const std::string ids = altered("ids.sh", R"(s/"tokens":\[[0-9]*,/"tokens":[3,/)");
  const RunResult other_ids = verify("other-ids", {"--reference-program", ids});
  CHECK(other_ids.exit_status == 2);
  CHECK_THAT(other_ids.err, ContainsSubstring("reference.h5: prompt 'p': is missing or has other tokens"));
  const std::string hash = altered("hash.sh", R"(s/"text_sha256":"......../"text_sha256":"00000000/)");
  CHECK(verify("other-text", {"--reference-program", hash}).exit_status == 1);
  CHECK(finding(report_of(scene.path("other-text")), "chained/identity").first == "mistrusted");
}
#endif

// The scripts a person runs, and what must not be committed.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "ci/tests/include_rules.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::ci {
namespace {

namespace fs = std::filesystem;
using fixtures::TempDirectory;

const fs::path kSource = KALIBRI_SOURCE_DIR;

/// ci/setup on a machine where only `missing` (or nothing, when empty) is not installed. Its commands are ours: they
/// write what they are asked to do.
fixtures::RunResult run_setup(const TempDirectory& machine, const std::string& missing,
                              const std::vector<std::string>& arguments = {}) {
  const fs::path log = machine.path() / "log";
  const auto command = [&](const std::string& name, const std::string& text) {
    fixtures::write_file(machine.path() / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(machine.path() / name, fs::perms::owner_all);
  };
  fixtures::write_file(log, "");
  command("dpkg-query", "if [ \"$3\" = '" + missing + "' ]; then exit 1; fi; echo installed");
  command("apt-get", "echo \"apt-get $*\" >> '" + log.string() + "'");
  command("sudo", "exec \"$@\"");
  fixtures::RunOptions options;
  options.environment = {{"PATH", machine.path().string() + ":/usr/bin:/bin"}};
  options.working_directory = "/";
  return fixtures::run_program(kSource / "ci" / "setup", arguments, options);
}

TEST_CASE("ci/setup does nothing when every package is there") {
  const TempDirectory machine;
  const auto result = run_setup(machine, "");
  CHECK(result.exit_status == 0);
  CHECK(result.out.empty());
  CHECK(fixtures::read_file(machine.path() / "log").empty());
}

TEST_CASE("ci/setup installs the package that is missing and no other, after one update") {
  const TempDirectory machine;
  const auto result = run_setup(machine, "ninja-build");
  CHECK(result.exit_status == 0);
  CHECK(fixtures::read_file(machine.path() / "log") ==
        "apt-get update\napt-get install --yes --no-install-recommends ninja-build\n");
}

TEST_CASE("ci/setup installs a package that is named besides, and does not ask for it otherwise") {
  const TempDirectory machine;
  CHECK(run_setup(machine, "clang-14").out.empty());
  CHECK(run_setup(machine, "clang-14", {"clang-14", "libclang-rt-14-dev"}).exit_status == 0);
  CHECK(fixtures::read_file(machine.path() / "log") ==
        "apt-get update\napt-get install --yes --no-install-recommends clang-14\n");
}

/// ci/fuzz in a folder where the other scripts and the programs only write how they are called.
fixtures::RunResult run_fuzz(const TempDirectory& folder, const std::vector<std::string>& arguments,
                             const std::string& ends_at = "") {
  const fs::path log = folder.path() / "log";
  const fs::path bin = folder.path() / "build" / "fuzz" / "bin";
  fs::create_directories(folder.path() / "ci");
  fs::create_directories(bin);
  fs::copy_file(kSource / "ci" / "fuzz", folder.path() / "ci" / "fuzz", fs::copy_options::overwrite_existing);
  fixtures::write_file(log, "");
  std::vector<fs::path> programs = {folder.path() / "ci" / "setup", folder.path() / "ci" / "build"};
  for (const char* name :
       {"kalibri-fixtures", "kalibri-fuzz-reply", "kalibri-fuzz-tokenizer", "kalibri-fuzz-checkpoint"})
    programs.push_back(bin / name);
  for (const fs::path& program : programs) {
    const std::string name = program.filename();
    fixtures::write_file(program, "#!/bin/sh\necho " + name + " \"$1\" >> '" + log.string() + "'\n" +
                                      (name == ends_at ? "exit 77\n" : ""));
    fs::permissions(program, fs::perms::owner_all);
  }
  return fixtures::run_program(folder.path() / "ci" / "fuzz", arguments);
}

TEST_CASE("ci/fuzz feeds every target for the time that is given, and ends at the first finding with its status") {
  const TempDirectory folder;
  const auto log = [&] { return fixtures::read_file(folder.path() / "log"); };
  const std::string begin = "setup clang-14\nbuild fuzz\nkalibri-fixtures fuzz-seeds\n";
  CHECK(run_fuzz(folder, {}).exit_status == 0);
  CHECK(log() == begin +
                     "kalibri-fuzz-reply -max_total_time=60\nkalibri-fuzz-tokenizer -max_total_time=60\n"
                     "kalibri-fuzz-checkpoint -max_total_time=60\n");
  CHECK(run_fuzz(folder, {"5", "kalibri-fuzz-tokenizer"}).exit_status == 0);
  CHECK(log() == begin + "kalibri-fuzz-tokenizer -max_total_time=5\n");
  CHECK(run_fuzz(folder, {"5"}, "kalibri-fuzz-reply").exit_status == 77);
  CHECK(log() == begin + "kalibri-fuzz-reply -max_total_time=5\n");
  CHECK(run_fuzz(folder, {"5 minutes"}).exit_status == 2);
  CHECK(log().empty());
}

/// ci/bench in a folder of its own, whose other scripts do nothing and whose programs are the built ones.
struct BenchFolder {
  TempDirectory temporary;
  fs::path path = temporary.path() / "a folder";

  BenchFolder() {
    fs::create_directories(path / "ci");
    fs::create_directories(path / "build" / "release");
    fs::copy_file(kSource / "ci" / "bench", path / "ci" / "bench");
    program(path / "ci" / "setup", "exit 0");
    program(path / "ci" / "build", "exit 0");
    fs::create_directory_symlink(KALIBRI_BIN_DIR, path / "build" / "release" / "bin");
  }
  static void program(const fs::path& file, const std::string& text) {
    fixtures::write_file(file, "#!/bin/sh\n" + text + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }
  [[nodiscard]] fixtures::RunResult run(const std::vector<std::string>& arguments) const {
    fixtures::RunOptions options;
    options.working_directory = temporary.path();
    options.environment = {{"PATH", temporary.path().string() + ":/usr/bin:/bin"}};
    return fixtures::run_program(path / "ci" / "bench", arguments, options);
  }
};

TEST_CASE("ci/bench measures kernels and both models, and takes turns with llama-bench where it is given one") {
  const BenchFolder folder;
  const fs::path log = folder.temporary.path() / "log";
  const fs::path peer = folder.temporary.path() / "llama bench";
  // Writes what it is called with, and says what llama-bench would, if the file is a GGUF one.
  BenchFolder::program(peer, "echo \"$(head -c 4 \"$2\") $(basename \"$2\") $5 $6 $7 $8\" >> '" + log.string() +
                                 R"('
printf '[{"n_threads": %s, "n_prompt": %s, "n_gen": 0, "avg_ts": 1000},' "$4" "$6"
printf ' {"n_threads": %s, "n_prompt": 0, "n_gen": %s, "avg_ts": 100}]\n' "$4" "$8")");
  const auto result = folder.run({"--quick", "--llama-bench", "llama bench"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  CHECK(fixtures::read_file(log) == "GGUF kolibri1.gguf -p 16 -n 4\nGGUF kolibri1.gguf -p 16 -n 4\n");

  const fs::path out = folder.path / "build" / "bench";
  const auto report = nlohmann::json::parse(fixtures::read_file(out / "bench.json"));
  CHECK(report.at("requests").size() == 3 * 6);  // Kolibri 1 twice, Qwen once
  CHECK(report.at("kernels").size() >= 6 * 2);   // formats, one and many tokens
  REQUIRE(report.at("comparisons").size() == 2 * 2);
  for (const auto& row : report.at("comparisons")) {
    const double theirs = row.at("stretch") == "decode" ? 100 : 1000;
    CHECK(row.at("theirs") == theirs);
    CHECK(row.at("ratio") == row.at("ours").get<double>() / theirs);
    CHECK(row.at("others").get<double>() >= 0);
  }
  CHECK(report.at("comparisons").at(2).at("our_activations") == "int16");
  CHECK(report.at("missing").size() == 1);
  REQUIRE(report.at("streaming").size() == 2);
  const auto& streamed = report.at("streaming").at(0);
  CHECK(streamed.at("stretch") == "answer");
  CHECK(streamed.at("tokens") == 6 * 4);
  CHECK(streamed.at("slots") == 2);
  CHECK(streamed.at("ratios").size() == 1);
  CHECK((streamed.at("from_disk") >= .99 || streamed.at("reached") == "unproven"));
  CHECK_THAT(result.out, Catch::Matchers::EndsWith(fixtures::read_file(out / "bench.md")));
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(out)) left.insert(entry.path().filename());
  CHECK(left == std::set<std::string>{"bench.json", "bench.md", "log", "runs.jsonl"});
}

TEST_CASE("ci/bench ends where llama-bench does not run, and refuses what cannot be before it builds") {
  const BenchFolder folder;
  const fs::path peer = folder.temporary.path() / "llama-bench";
  BenchFolder::program(peer, "echo 'cannot load' >&2; exit 1");
  const auto broken = folder.run({"--quick", "--llama-bench", peer});
  CHECK(broken.exit_status == 2);
  CHECK_THAT(broken.err, Catch::Matchers::ContainsSubstring("llama-bench -m"));
  CHECK_THAT(fixtures::read_file(folder.path / "build/bench/log"), Catch::Matchers::EndsWith("cannot load\n"));

  BenchFolder::program(folder.path / "ci" / "build", "exit 77");  // what goes as far as building ends so
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& text) {
    const auto result = folder.run(arguments);
    CAPTURE(result.err);
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, Catch::Matchers::ContainsSubstring(text));
  };
  CHECK(folder.run({"--quick"}).exit_status == 77);
  refused({"--quick", "--llama-bench", "nowhere"}, "--llama-bench nowhere: no program there");
  refused({"--layers"}, "--layers needs a value");
  refused({"--layers", "1"}, "expected a number from 2");
  refused({"--rounds", "x"}, "expected a number from 1");
  refused({"--fast"}, "usage: ci/bench");
  refused({"--llama-bench", ""}, "--llama-bench needs a value");
  BenchFolder::program(folder.temporary.path() / "df", "echo Avail; echo 9999999999");
  BenchFolder::program(folder.temporary.path() / "du",
                       "printf '6000000000\\tbuild/bench\\n'");  // an earlier run's, to be freed
  fixtures::write_file(folder.path / "build/bench/bench.json", "{}");
  refused({}, "4 layers take up to 16 GB in build/bench, the disk has 15 GB left: make room, or --layers 2");
  CHECK(fixtures::read_file(folder.path / "build/bench/bench.json") == "{}");
  BenchFolder::program(folder.temporary.path() / "du", "printf '0\\tbuild/bench\\n'");
  BenchFolder::program(folder.temporary.path() / "df", "echo Avail; echo 16000000000");
  CHECK(folder.run({}).exit_status == 77);
  refused({"--llama-bench", peer}, "take up to 30 GB");
}

TEST_CASE("every script of the project can be run and stops at its first error") {
  int n_scripts = 0;
  for (const fs::path& folder : {kSource / "ci", kSource / ".ci"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.path().has_extension()) continue;
      ++n_scripts;
      CAPTURE(entry.path());
      CHECK(::access(entry.path().c_str(), X_OK) == 0);
      CHECK(fixtures::run_program("/bin/bash", {"-n", entry.path().string()}).exit_status == 0);
      const std::string text = fixtures::read_file(entry.path());
      CHECK(text.starts_with("#!/bin/bash\n"));
      CHECK((text.find("\nset -euo pipefail\n") != std::string::npos || text.find("\nexec ") != std::string::npos));
    }
  }
  CHECK(n_scripts >= 6);
}

/// Lines of `text` that name a place of one machine: somebody's home, or where this very copy of the source lies.
std::vector<std::string> machine_paths(const std::string& text, const fs::path& source) {
  std::vector<std::string> places = {source.string()};
  for (const char* const home : {"home", "root", "Users"}) places.push_back(std::string("/") + home + "/");
  const fs::path parent = source.parent_path();
  if (parent != "/" && parent != fs::temp_directory_path()) places.push_back(parent.string() + "/");
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    for (const std::string& place : places) {
      const std::size_t at = line.find(place);
      if (at == std::string::npos) continue;
      const bool begins_a_path =
          at == 0 || std::string_view(" \t\"'(=:,`").find(line[at - 1]) != std::string_view::npos;
      if (begins_a_path) found.push_back(line);
    }
  }
  return found;
}

TEST_CASE("nothing in the project names a path of one machine") {
  int n_files = 0;
  std::vector<fs::path> files = {kSource / "CMakeLists.txt", kSource / "README.md"};
  for (const char* folder : {"ci", "engine", "fixtures", "oracle", "reference", "reports"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      if (entry.is_regular_file() && entry.path().extension() != ".safetensors") files.push_back(entry.path());
    }
  }
  for (const fs::path& file : files) {
    ++n_files;
    CAPTURE(file);
    CHECK(machine_paths(fixtures::read_file(file), kSource) == std::vector<std::string>{});
  }
  CHECK(n_files > 150);
}

/// Names of the cases in a test's source whose letters ctest or Catch2 read as a separator, a tag or an option: such a
/// case cannot be run by its name, and fails only there.
std::vector<std::string> names_that_cannot_be_run(const std::string& source) {
  static const std::regex kCase(R"re(TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+))re");
  static const std::regex kSeams(R"re("\s*")re");
  std::vector<std::string> found;
  for (std::sregex_iterator at(source.begin(), source.end(), kCase), end; at != end; ++at) {
    std::string name = std::regex_replace((*at)[1].str(), kSeams, "");
    name = name.substr(1, name.rfind('"') - 1);
    if (name.empty() || name.front() == '-' || name.find_first_of(";[]\\") != std::string::npos) found.push_back(name);
  }
  return found;
}

TEST_CASE("every test case has a name by which it can be run") {
  int n_files = 0;
  for (const char* folder : {"ci", "engine", "fixtures", "oracle", "reference", "reports"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      if (entry.path().extension() != ".cpp" || entry.path().parent_path().filename() != "tests") continue;
      ++n_files;
      CAPTURE(entry.path());
      CHECK(names_that_cannot_be_run(fixtures::read_file(entry.path())) == std::vector<std::string>{});
    }
  }
  CHECK(n_files > 50);
  const std::string start = std::string("TEST_") + "CASE(";
  CHECK(names_that_cannot_be_run(start + "\"a name, of two parts: --good\") {\n") == std::vector<std::string>{});
  CHECK(names_that_cannot_be_run(start + "\n    \"one half\"\n    \" of it; another\") {") ==
        std::vector<std::string>{"one half of it; another"});
  CHECK(names_that_cannot_be_run(start + "\"--help\") {}" + start + "\"[tag]\") {}").size() == 2);
}

TEST_CASE("a path of one machine is seen, and a path like it is not") {
  const auto is_seen = [](const std::string& line) { return !machine_paths(line, "/data/kalibri").empty(); };
  const std::string home = std::string("/") + "home/";
  CHECK(is_seen("model = \"" + home + "ada/models\""));
  CHECK(is_seen("see /data/kalibri/README.md"));
  CHECK(is_seen("see /data/models"));
  CHECK_FALSE(is_seen("build/data/models"));
  CHECK_FALSE(is_seen("kalibri verify /tmp/wide"));
}

}  // namespace
}  // namespace kalibri::ci

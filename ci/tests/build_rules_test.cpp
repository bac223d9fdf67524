// The build keeps the layers: what a file may not include does not compile, and what a program must not link is not in
// it.
#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>

#include "ci/tests/compile_commands.hpp"
#include "ci/tests/include_rules.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"

namespace kalibri::ci {
namespace {

namespace fs = std::filesystem;

const fs::path kBuild = KALIBRI_BUILD_DIR;

const std::vector<CompileCommand>& commands() {
  static const std::vector<CompileCommand> all = read_compile_commands(kBuild, KALIBRI_SOURCE_DIR);
  return all;
}

/// How a file of folder `folder` itself is compiled: the first in the library or program, not in a test.
const CompileCommand& command_of(const std::string& folder) {
  const auto found = std::ranges::find_if(
      commands(), [&](const CompileCommand& command) { return fs::path(command.file).parent_path() == folder; });
  if (found == commands().end()) throw std::runtime_error("nothing of " + folder + " is compiled");
  return *found;
}

bool shows_only_what_is_allowed(const CompileCommand& command) {
  return std::ranges::all_of(command.shown, [&](const std::string& link) { return may_include(command.file, link); });
}

TEST_CASE("a file that names a header which its folder may not see does not compile") {
  struct Case {
    std::string folder;
    std::string forbidden;
    std::string allowed;
  };
  std::vector<Case> cases = {
      {"engine/kernels", "engine/checkpoint/safetensors.hpp", "engine/base/check.hpp"},
      {"engine/kernels", "engine/base/error.hpp", "engine/kernels/matrix_view.hpp"},
      {"engine/model", "oracle/dump/names.hpp", "engine/checkpoint/checkpoint.hpp"},
      {"engine/runtime", "oracle/dump/error.hpp", "engine/base/error.hpp"},
      {"engine/base", "engine/kernels/kernels.hpp", "engine/base/error.hpp"},
      {"oracle/metrics", "engine/base/error.hpp", "oracle/dump/error.hpp"},
      {"oracle/dump", "oracle/metrics/rows.hpp", "oracle/dump/error.hpp"},
      {"fixtures", "engine/base/error.hpp", "fixtures/golden.hpp"},
  };
#ifdef KALIBRI_HAS_REFERENCE
  cases.push_back({"reference", "engine/base/error.hpp", "reference/error.hpp"});
  cases.push_back({"reference", "engine/kernels/codec.hpp", "reference/error.hpp"});
  cases.push_back({"reference", "oracle/metrics/rows.hpp", "reference/error.hpp"});
#endif
  for (const Case& each : cases) {
    CAPTURE(each.folder, each.forbidden);
    REQUIRE(fs::exists(fs::path(KALIBRI_SOURCE_DIR) / each.forbidden));  // else the error would say nothing
    const CompileCommand& command = command_of(each.folder);
    const CompileResult forbidden = compile_like(command, "#include \"" + each.forbidden + "\"\n");
    CHECK_FALSE(forbidden.compiles);
    CHECK_THAT(forbidden.messages, Catch::Matchers::ContainsSubstring(each.forbidden));
    CHECK_THAT(forbidden.messages, Catch::Matchers::ContainsSubstring("No such file or directory") ||  // g++
                                       Catch::Matchers::ContainsSubstring("file not found"));          // clang
    const CompileResult allowed = compile_like(command, "#include \"" + each.allowed + "\"\n");
    CAPTURE(allowed.messages);
    CHECK(allowed.compiles);  // the control: it is the header that is missing, not the compiler that fails
  }
}

TEST_CASE("each file is compiled where its include root shows nothing but what it may include") {
  std::set<std::string> compiled;
  std::set<std::string> kept;  // somewhere the root is no wider; another program may compile the file again with more
  for (const CompileCommand& command : commands()) {
    compiled.insert(command.file);
    if (shows_only_what_is_allowed(command)) kept.insert(command.file);
  }
  REQUIRE(compiled.size() > 50);
  for (const std::string& file : compiled) {
    if (file.starts_with("engine/") || file.starts_with("oracle/") || file.starts_with("reference/") ||
        file.starts_with("reports/") || file.starts_with("fixtures/") || file.starts_with("ci/")) {
      CAPTURE(file);
      CHECK(kept.contains(file));
    }
  }
}

TEST_CASE("a root that shows too much is seen") {
  CHECK(shows_only_what_is_allowed({"reference/a.cpp", "", "", {"oracle/dump", "reference"}}));
  CHECK_FALSE(shows_only_what_is_allowed({"reference/a.cpp", "", "", {"oracle", "reference"}}));
  CHECK_FALSE(shows_only_what_is_allowed({"reference/a.cpp", "", "", {"engine/base", "reference"}}));
  CHECK_FALSE(shows_only_what_is_allowed({"engine/kernels/a.cpp", "", "", {"engine/base", "engine/kernels"}}));
  CHECK_FALSE(shows_only_what_is_allowed({"engine/model/tests/a_test.cpp", "", "", {"engine", "fixtures"}}));
}

TEST_CASE("each header compiles alone: in a file of its own, or first in the .cpp that bears its name") {
  std::set<std::string> compiled;
  for (const CompileCommand& command : commands()) compiled.insert(command.file);
  int n_alone = 0;
  for (const std::string& file : source_files(KALIBRI_SOURCE_DIR)) {
    const bool needs_flags = file.find("-inl.hpp") != std::string::npos || file.find("/isa_") != std::string::npos;
    if (!file.ends_with(".hpp") || needs_flags) continue;
#ifndef KALIBRI_HAS_REFERENCE
    if (file.starts_with("reference/")) continue;
#endif
    CAPTURE(file);
    const std::string own_source = fs::path(file).replace_extension(".cpp").generic_string();
    const bool is_alone = compiled.contains("headers/" + file + ".cpp");
    n_alone += is_alone ? 1 : 0;
    CHECK((is_alone || compiled.contains(own_source)));
  }
  CHECK(n_alone > 5);
}

// What is linked.

std::string output_of(const fs::path& program, const std::vector<std::string>& arguments) {
  const auto result = fixtures::run_program(program, arguments);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  return result.out;
}

/// Undefined symbols of a library, or the shared libraries of a program, that contain one of `words`.
std::vector<std::string> lines_with(const std::string& text, const std::vector<std::string>& words) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (std::ranges::any_of(words, [&](const std::string& word) { return line.find(word) != std::string::npos; })) {
      found.push_back(line);
    }
  }
  return found;
}

std::vector<std::string> symbols(const fs::path& library, const std::vector<std::string>& words) {
  return lines_with(output_of(KALIBRI_NM, {"--demangle", library.string()}), words);
}

const std::vector<std::string> kHdf5 = {" H5"};
const std::vector<std::string> kTorch = {" at::", " c10::", " torch::"};

TEST_CASE("the engine's libraries use neither HDF5 nor LibTorch nor the dump") {
  int n_libraries = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kBuild / "engine")) {
    if (entry.path().extension() != ".a") continue;
    ++n_libraries;
    CAPTURE(entry.path());
    CHECK(symbols(entry.path(), kHdf5).empty());
    CHECK(symbols(entry.path(), kTorch).empty());
    CHECK(symbols(entry.path(), {"kalibri::dump"}).empty());
  }
  CHECK(n_libraries >= 5);
  CHECK_FALSE(symbols(kBuild / "oracle" / "dump" / "libkalibri_dump.a", kHdf5).empty());  // the control
}

TEST_CASE("the program kalibri has no LibTorch, and nothing of the reference") {
  const fs::path program = fs::path(KALIBRI_BIN_DIR) / "kalibri";
  const std::vector<std::string> libraries = {"libtorch", "libc10"};
  CHECK(lines_with(output_of("/usr/bin/ldd", {program.string()}), libraries).empty());
  CHECK(symbols(program, {"kalibri::reference"}).empty());
  CHECK_FALSE(lines_with(output_of("/usr/bin/ldd", {program.string()}), {"libhdf5"}).empty());  // the control
#ifdef KALIBRI_HAS_REFERENCE
  const fs::path reference = fs::path(KALIBRI_BIN_DIR) / "kalibri-reference";
  CHECK_FALSE(lines_with(output_of("/usr/bin/ldd", {reference.string()}), libraries).empty());
  CHECK_FALSE(symbols(reference, {"kalibri::reference"}).empty());
  CHECK(symbols(reference, {"kalibri::kernels", "kalibri::checkpoint", "kalibri::runtime", "kalibri::model"}).empty());
#endif
}

}  // namespace
}  // namespace kalibri::ci

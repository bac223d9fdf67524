// Who may include whom: the include lines of the source tree against the table.
#include "ci/tests/include_rules.hpp"

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::ci {
namespace {

using fixtures::TempDirectory;

/// A tree with one file of the given text, beside headers that may be named in it.
std::vector<std::string> violations_of(const std::string& file, const std::string& text) {
  const TempDirectory tree;
  const std::vector<std::string> headers = {"engine/base/check.hpp",
                                            "engine/base/error.hpp",
                                            "engine/kernels/dot.hpp",
                                            "engine/checkpoint/checkpoint.hpp",
                                            "engine/model/tests/helper.hpp",
                                            "oracle/dump/reader.hpp",
                                            "oracle/metrics/rows.hpp",
                                            "reports/report.hpp",
                                            "fixtures/catch.hpp"};
  for (const std::string& header : headers) {
    std::filesystem::create_directories((tree.path() / header).parent_path());
    fixtures::write_file(tree.path() / header, "#pragma once\n");
  }
  std::filesystem::create_directories((tree.path() / file).parent_path());
  fixtures::write_file(tree.path() / file, text);
  return include_violations(tree.path());
}

std::vector<std::string> violations_of_include(const std::string& file, const std::string& included) {
  return violations_of(file, "#include <vector>\n#include \"" + included + "\"\n");
}

TEST_CASE("no include line of the project breaks the table of who may include whom") {
  REQUIRE(source_files(KALIBRI_SOURCE_DIR).size() > 100);
  CHECK(include_violations(KALIBRI_SOURCE_DIR) == std::vector<std::string>{});
}

TEST_CASE("what the table allows is no violation") {
  CHECK(violations_of_include("engine/kernels/a.cpp", "engine/base/check.hpp").empty());
  CHECK(violations_of_include("engine/checkpoint/a.cpp", "engine/kernels/dot.hpp").empty());
  CHECK(violations_of_include("engine/cli/a.cpp", "oracle/metrics/rows.hpp").empty());
  CHECK(violations_of_include("engine/cli/a.cpp", "reports/report.hpp").empty());
  CHECK(violations_of_include("oracle/gate/a.cpp", "oracle/metrics/rows.hpp").empty());
  CHECK(violations_of_include("reference/a.cpp", "oracle/dump/reader.hpp").empty());
  CHECK(violations_of_include("engine/base/tests/a_test.cpp", "fixtures/catch.hpp").empty());
  CHECK(violations_of_include("engine/model/tests/a_test.cpp", "engine/model/tests/helper.hpp").empty());
}

TEST_CASE("each thing that the table forbids is found, with its file and line") {
  const std::vector<std::pair<std::string, std::string>> forbidden = {
      {"reference/a.cpp", "engine/base/error.hpp"},
      {"reference/a.cpp", "oracle/metrics/rows.hpp"},
      {"reference/a.cpp", "fixtures/catch.hpp"},
      {"oracle/gate/a.cpp", "engine/base/error.hpp"},
      {"oracle/dump/a.cpp", "oracle/metrics/rows.hpp"},
      {"reports/a.cpp", "oracle/dump/reader.hpp"},
      {"engine/kernels/a.cpp", "engine/base/error.hpp"},
      {"engine/kernels/a.cpp", "engine/checkpoint/checkpoint.hpp"},
      {"engine/base/a.cpp", "engine/kernels/dot.hpp"},
      {"engine/checkpoint/a.cpp", "oracle/dump/reader.hpp"},
      {"engine/model/a.cpp", "oracle/dump/reader.hpp"},
      {"engine/model/a.cpp", "engine/model/tests/helper.hpp"},
      {"engine/model/tests/a_test.cpp", "oracle/dump/reader.hpp"},
      {"engine/model/a.cpp", "fixtures/catch.hpp"},
      {"fixtures/a.cpp", "engine/base/error.hpp"},
  };
  for (const auto& [file, included] : forbidden) {
    CAPTURE(file, included);
    CHECK(violations_of_include(file, included) == std::vector<std::string>{file + ":2: may not include " + included});
  }
}

TEST_CASE("an include with '..', not from the root, of no file, or of ours in angle brackets is found") {
  const auto one = [](const std::string& file, const std::string& line, const std::string& what) {
    CAPTURE(file, line);
    const auto violations = violations_of(file, line + "\n");
    REQUIRE(violations.size() == 1);
    CHECK_THAT(violations.front(),
               Catch::Matchers::ContainsSubstring(file + ":1: ") && Catch::Matchers::ContainsSubstring(what));
  };
  one("engine/base/a.cpp", "#include \"engine/kernels/../base/error.hpp\"", "'..'");
  one("engine/base/a.cpp", "#  include \"error.hpp\"", "written from the root");
  one("engine/base/a.cpp", "#include \"engine/base/missing.hpp\"", "no file of the project");
  one("engine/base/a.cpp", "#include <engine/base/error.hpp>", "with quotes");
  one("engine/base/error.cpp", "#include <vector>", "own header engine/base/error.hpp");
}

TEST_CASE("a folder that the table does not know is found") {
  CHECK(violations_of("engine/gadgets/a.cpp", "") ==
        std::vector<std::string>{"engine/gadgets/a.cpp: its folder is not in the table"});
}

}  // namespace
}  // namespace kalibri::ci

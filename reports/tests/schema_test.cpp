// What is a report and what is not, and how a file that is none is refused.
#include <fstream>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "reports/report.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

namespace {

json example() { return reports::read_report(KALIBRI_SOURCE_DIR "/reports/tests/report.json"); }

/// schema_error after setting (or, with null, removing) what `pointer` names.
std::string error_after(const std::string& pointer, const json& value) {
  json report = example();
  const json::json_pointer place(pointer);
  if (value.is_discarded()) {
    report.at(place.parent_pointer()).erase(place.back());
  } else {
    report[place] = value;
  }
  return reports::schema_error(report);
}

const json kGone(json::value_t::discarded);

}  // namespace

TEST_CASE("The example follows the schema") { REQUIRE(reports::schema_error(example()).empty()); }

TEST_CASE("A report is refused with the member that is wrong") {
  REQUIRE_THAT(error_after("/findings/1/status", "passed"), ContainsSubstring("/findings/1/status"));
  REQUIRE_THAT(error_after("/findings/1/value", "0.5"), ContainsSubstring("/findings/1/value"));
  REQUIRE_THAT(error_after("/findings/0/extra", 1), ContainsSubstring("/findings/0"));
  REQUIRE_THAT(error_after("/findings/0/bound", kGone), ContainsSubstring("bound"));
  REQUIRE_THAT(error_after("/verdict/exit_status", 4), ContainsSubstring("/verdict/exit_status"));
  REQUIRE_THAT(error_after("/comparisons/teacher_forced/rows/0/route_same_frac", 1.5),
               ContainsSubstring("route_same_frac"));
  REQUIRE_THAT(error_after("/comparisons/teacher_forced/rows/0/rel", kGone), ContainsSubstring("rel"));
  REQUIRE_THAT(error_after("/version", 2), ContainsSubstring("/version"));
  REQUIRE_THAT(error_after("/verdict", kGone), ContainsSubstring("verdict"));
}

TEST_CASE("A file that is no report is an error that names it") {
  const fixtures::TempDirectory folder;
  const auto refused = [&](const std::string& text) {
    const auto path = folder.path() / "r.json";
    std::ofstream(path) << text;
    try {
      reports::read_report(path);
    } catch (const reports::Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  REQUIRE_THAT(refused("{\"format\": "), ContainsSubstring("r.json: is not JSON"));
  REQUIRE_THAT(refused("[]"), ContainsSubstring("is not a Kalibri report"));
  REQUIRE_THAT(refused("{}"), ContainsSubstring("is not a Kalibri report") && ContainsSubstring("kalibri verify"));
  REQUIRE_THROWS_WITH(reports::read_report(folder.path() / "absent.json"),
                      ContainsSubstring("absent.json: cannot be read"));
}

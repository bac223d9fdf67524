// The texts among the options, taken apart.
#include "reference/options.hpp"

#include "fixtures/catch.hpp"
#include "reference/error.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;

std::pair<std::int64_t, std::int64_t> layers(const std::string& text, const std::string& mode = "teacher-forced") {
  Options options;
  options.layers = text;
  options.mode = mode;
  const LayerRange range = parse_layers(options, 5);
  return {range.first, range.end};
}

TEST_CASE("Option --layers takes one layer or both ends of a range") {
  CHECK(layers("") == std::pair<std::int64_t, std::int64_t>{0, 5});
  CHECK(layers("3") == std::pair<std::int64_t, std::int64_t>{3, 4});
  CHECK(layers("1-4") == std::pair<std::int64_t, std::int64_t>{1, 5});
  for (const char* text : {"5", "2-5", "3-2", "-1", "1-", "a", "1-2-3", "1,2", " 1", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(layers(text), Error);
  }
  CHECK(layers("0-2", "chained") == std::pair<std::int64_t, std::int64_t>{0, 3});
  CHECK_THROWS_WITH(layers("1-2", "chained"), ContainsSubstring("begins at layer 0"));
}

TEST_CASE("Option --taps takes names of the model's list, or all") {
  const std::vector<std::string_view> available{"k", "q", "v"};
  CHECK(parse_taps("", available).empty());
  CHECK(parse_taps("all", available) == available);
  CHECK(parse_taps("v,k", available) == std::vector<std::string_view>{"k", "v"});
  CHECK_THROWS_WITH(parse_taps("q,w", available), ContainsSubstring("'w' is none of this model's: k, q, v, or all"));
  CHECK_THROWS_AS(parse_taps("q,", available), Error);
}

TEST_CASE("Option --positions takes all, none, the last ones, or a list") {
  using Rows = std::vector<std::int32_t>;
  CHECK(parse_positions("all", 3, "p") == Rows{0, 1, 2});
  CHECK(parse_positions("none", 3, "p").empty());
  CHECK(parse_positions("last:2", 3, "p") == Rows{1, 2});
  CHECK(parse_positions("last:9", 3, "p") == Rows{0, 1, 2});
  CHECK(parse_positions("5,0,2-3,3", 6, "p") == Rows{0, 2, 3, 5});
  for (const char* text : {"", "6", "0,6", "3-2", "last:0", "last:", "last:x", "every", "1,,2"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_positions(text, 6, "p"), ContainsSubstring("--positions"));
  }
}

}  // namespace
}  // namespace kalibri::reference::test

// Where a text ends by a stop string, by hand and against the definition in any pieces.
#include "engine/text/stop_strings.hpp"

#include <algorithm>

#include "engine/base/error.hpp"
#include "engine/text/tests/random.hpp"
#include "engine/text/unicode.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::text::test {
namespace {

using Strings = std::vector<std::string>;

/// What comes out for each piece, and then by the flush.
Strings outputs(const Strings& stops, const Strings& pieces) {
  StopStrings stop(stops);
  Strings out;
  for (const std::string& piece : pieces) out.push_back(stop.feed(piece));
  out.push_back(stop.flush());
  return out;
}

TEST_CASE("text goes out as soon as it cannot begin a stop string, and nothing after one goes out") {
  CHECK(outputs({}, {"a", "b"}) == Strings{"a", "b", ""});
  CHECK(outputs({"\n\n"}, {"one\n", "two", "\n", "\n", "three"}) == Strings{"one", "\ntwo", "", "", "", ""});
  CHECK(outputs({"END"}, {"EN", "EN", "D.", "x"}) == Strings{"", "EN", "", "", ""});
  CHECK(outputs({"END"}, {"the EN"}) == Strings{"the ", "EN"});
  CHECK(outputs({"aab"}, {"aaa", "a", "b"}) == Strings{"a", "a", "", ""});
  CHECK(outputs({"abcd", "bx"}, {"abc", "abx"}) == Strings{"", "abca", ""});
  CHECK(outputs({"\xC3\xA9"}, {"caf", "\xC3\xA8", "\xC3\xA9"}) == Strings{"caf", "\xC3\xA8", "", ""});
}

TEST_CASE("the match that is complete first ends the text, and of two complete at once the longer") {
  CHECK(outputs({"bc", "abcd"}, {"xabcd"}) == Strings{"xa", ""});
  CHECK(outputs({"bc", "abc"}, {"xabcd"}) == Strings{"x", ""});
  StopStrings stop({"x"});
  CHECK(stop.feed("ax") == "a");
  CHECK(stop.has_matched());
  CHECK(stop.feed("b").empty());
}

/// The definition: of all places where a stop string ends, the first; of all that end there, the one that begins first.
std::string cut(const std::string& text, const Strings& stops) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

/// How much of `text`, which holds no match, may go out: all but the longest end that begins a stop string.
std::size_t n_certain(const std::string& text, const Strings& stops) {
  std::size_t n_uncertain = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size(), text.size()); n > n_uncertain; --n) {
      if (text.ends_with(stop.substr(0, n))) n_uncertain = n;
    }
  }
  return text.size() - n_uncertain;
}

TEST_CASE("however a text is cut into pieces, the same comes out, and always as much as is certain") {
  int n_matches = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto letters = [&](std::size_t n) {
      std::string text;
      while (n-- > 0) text += std::vector{"a", "b", "\xC3\xA9"}[random.below(3)];
      return text;
    };
    Strings stops;
    for (std::size_t i = random.below(4); i-- > 0;) stops.push_back(letters(1 + random.below(6)));
    const std::string text = letters(random.below(40));
    const std::string expected = cut(text, stops);
    StopStrings stop(stops);
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = std::min(text.size() - at, random.below(5));
      out += stop.feed(std::string_view(text).substr(at, n));
      at += n;
      if (!stop.has_matched()) REQUIRE(out.size() == n_certain(text.substr(0, at), stops));
    }
    REQUIRE(stop.has_matched() == (expected.size() < text.size()));
    out += stop.flush();
    REQUIRE(out == expected);
    n_matches += stop.has_matched() ? 1 : 0;
  }
  CHECK(n_matches > 300);
  CHECK(n_matches < 2500);
}

TEST_CASE("stop strings that are empty, too long, too many or no UTF-8 are refused") {
  for (const Strings& bad : {Strings{""}, {std::string(257, 'a')}, Strings(17, "a"), {"\xC3"}}) {
    CHECK_THROWS_WITH(StopStrings(bad), Catch::Matchers::ContainsSubstring("stop: "));
    CHECK_THROWS_AS(StopStrings(bad), Error);
  }
  CHECK_NOTHROW(StopStrings(Strings(16, std::string(256, 'a'))));
}

}  // namespace
}  // namespace kalibri::text::test

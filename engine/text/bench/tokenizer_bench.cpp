// How many bytes a second one thread encodes, with vocabularies of 128,000 entries: prose in two languages, and the
// texts that would be slow if a step were quadratic. Median of several runs, CPU time of the thread. A case whose ids
// do not decode to its text prints nothing and fails.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "engine/text/bench/prose.hpp"
#include "engine/text/nfc.hpp"
#include "engine/text/tokenizer.hpp"

namespace kalibri::text::bench {
namespace {

constexpr int kRepeats = 5;
constexpr std::size_t kMebi = 1 << 20;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Work>
double median_seconds(const Work& work) {
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = thread_seconds();
    work();
    seconds.push_back(thread_seconds() - start);
  }
  std::ranges::sort(seconds);
  return seconds[kRepeats / 2];
}

std::string repeated(const std::string& unit, std::size_t n_bytes) {
  std::string text;
  while (text.size() < n_bytes) text += unit;
  return text;
}

struct Case {
  std::string name;
  std::string text;
};

std::vector<Case> make_cases(const std::vector<Language>& languages) {
  std::vector<Case> cases;
  for (const Language& language : languages)
    cases.push_back({language.name + std::string(" prose"), prose(language, 4 * kMebi, 3)});
  const std::vector<Case> units = {
      {"one letter", "a"},
      {"a letter without merges", "\xD0\x96"},
      {"spaces", " "},
      {"line ends", "\n"},
      {"combining marks", "\xCC\x81"},
      {"marks of alternating class", "\xCC\x81\xCC\xA3"},
      {"Hangul jamo", "\xE1\x84\x80\xE1\x85\xA1"},
      {"digits", "7"},
      {"'<', which begins added tokens", "<"},
      {"ill-formed UTF-8", "\xF0\x9F"},
  };
  for (const auto& [name, unit] : units) cases.push_back({"1 MiB of " + name, repeated(unit, kMebi)});
  return cases;
}

int run() {
  const std::vector<Language> languages = {english(), german()};
  const std::vector<Case> cases = make_cases(languages);
  int n_failed = 0;
  for (const bool with_nfc : {true, false}) {
    const std::string file = tokenizer_json(languages, with_nfc);
    const auto load = [&] { return Tokenizer::parse(std::as_bytes(std::span(file)), "tokenizer.json"); };
    const Tokenizer tokenizer = load();
    std::printf("%s: %d ids, %.1f MB, read in %.2f s\n", with_nfc ? "Qwen 3.8 (NFC)" : "Kolibri 1", tokenizer.n_ids(),
                static_cast<double>(file.size()) / 1e6, median_seconds(load));
    for (const auto& [name, case_text] : cases) {
      const std::string& text = case_text;  // clang 14 lets no lambda name a binding
      std::vector<std::int32_t> ids;
      const double seconds = median_seconds([&] { ids = tokenizer.encode(text); });
      const std::string valid = to_utf8(text);
      if (tokenizer.decode(ids, false) != (with_nfc ? nfc(valid) : valid)) {
        std::fprintf(stderr, "%s: its ids decode to another text\n", name.c_str());
        ++n_failed;
        continue;
      }
      std::printf("  %-42s %7.1f MB/s %8.2f bytes/id\n", name.c_str(), static_cast<double>(text.size()) / 1e6 / seconds,
                  static_cast<double>(text.size()) / static_cast<double>(ids.size()));
    }
  }
  return n_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kalibri::text::bench

int main() { return kalibri::text::bench::run(); }

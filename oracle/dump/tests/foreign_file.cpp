// Runs the cases of files that must be refused.
#include "oracle/dump/tests/foreign_file.hpp"

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

namespace kalibri::dump::test {

void check_refused(std::span<const Case> cases) {
  using Catch::Matchers::ContainsSubstring;
  for (const Case& entry : cases) {
    const fixtures::TempDirectory folder;
    const auto path = folder.path() / "a.h5";
    entry.change(ForeignFile(path));
    std::string text = "it was accepted";
    try {
      const Reader reader(path);
    } catch (const Error& error) {
      text = error.what();
    }
    INFO(entry.what);
    CHECK_THAT(text, ContainsSubstring("a.h5: ") && ContainsSubstring(entry.message));
  }
}

}  // namespace kalibri::dump::test

// Runs the cases of files that must be refused. HDF5 1.10 itself loses memory where a checksum is wrong or the disk is
// full: the leak sanitizer is told so, for this test program; that we close what we open is tested by HDF5's own count.
#include "oracle/dump/tests/foreign_file.hpp"

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT(bugprone-reserved-identifier)

namespace kalibri::dump::test {

void check_refused(std::span<const Case> cases) {
  using Catch::Matchers::ContainsSubstring;
  const auto n_before = n_open();
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
    CHECK(n_open() == n_before);
    CHECK_THAT(text, ContainsSubstring("a.h5: ") && ContainsSubstring(entry.message));
  }
}

}  // namespace kalibri::dump::test

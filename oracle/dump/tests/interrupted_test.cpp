// Runs that do not come to their end: killed, disk full, folder not writable. Nothing that looks whole may remain, and
// the message says what to do.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/writer.hpp"

namespace {

using namespace kalibri::dump;
using Catch::Matchers::ContainsSubstring;
using kalibri::fixtures::TempDirectory;
using std::filesystem::path;

const Header kHeader{"kalibri", "0.1.0", "kolibri1", 1, "chained", "abc123", "exact", "{}"};
constexpr std::int64_t kRows = 40;
constexpr std::int64_t kWidth = 10'000;  // 40 kB a row, 26 rows a chunk
constexpr int kLayers = 4;

/// Writes layers of random bits, which do not compress; `after_layer` is called after each.
template <typename Function>
void write_dump(const path& file, Function after_layer) {
  Writer writer(file, kHeader);
  writer.begin_prompt("p", std::vector<std::int32_t>(kRows, 1), "");
  std::uint32_t state = 1;
  std::vector<float> rows(kRows * kWidth);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (float& value : rows) {
      state = state * 1'664'525U + 1'013'904'223U;
      value = static_cast<float>(state);
    }
    writer.write_rows(layer_path(layer, "residual"), kRows, std::vector<std::int64_t>{kWidth}, 0,
                      std::span<const float>(rows));
    after_layer(layer);
  }
  writer.finish(0, 0);
}

bool nothing_left(const path& file) {
  return !std::filesystem::exists(file) && !std::filesystem::exists(file.string() + ".partial");
}

/// While it lives, no file of this process may grow beyond `n_bytes`: a full disk, but for the error's number.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t n_bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{n_bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("A killed run leaves only a file that is refused by name, and the next run replaces it") {
  for (const int last_layer : {0, 2, kLayers - 1}) {
    const TempDirectory folder;
    const path file = folder.path() / "a.h5";
    const path partial = file.string() + ".partial";
    const pid_t child = fork();
    if (child == 0) {
      write_dump(file, [&](int layer) {
        if (layer == last_layer) kill(getpid(), SIGKILL);
      });
      _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == SIGKILL);

    CHECK_FALSE(std::filesystem::exists(file));
    REQUIRE(std::filesystem::exists(partial));
    CHECK_THROWS_WITH(Reader(file), ContainsSubstring("a.h5: not there yet: ") &&
                                        ContainsSubstring("a.h5.partial is of a run that was stopped") &&
                                        ContainsSubstring("run it again"));
    CHECK_THROWS_WITH(Reader(partial), ContainsSubstring("a.h5.partial: unfinished"));
    const path renamed = folder.path() / "renamed.h5";
    std::filesystem::copy(partial, renamed);
    CHECK_THROWS_WITH(Reader(renamed), ContainsSubstring("renamed.h5: truncated or damaged") ||
                                           ContainsSubstring("renamed.h5: unfinished"));

    write_dump(file, [](int) {});
    CHECK_FALSE(std::filesystem::exists(partial));
    CHECK(Reader(file).prompts()[0].layers.size() == kLayers);
  }
}

TEST_CASE("A run that ends with an exception removes its file and leaves an older dump as it was") {
  const TempDirectory folder;
  const path file = folder.path() / "a.h5";
  CHECK_THROWS_AS(write_dump(file, [](int) { throw Error("stop"); }), Error);
  CHECK(nothing_left(file));

  write_dump(file, [](int) {});
  const auto n_bytes = std::filesystem::file_size(file);
  CHECK_THROWS_AS(write_dump(file, [](int) { throw Error("stop"); }), Error);
  CHECK(std::filesystem::file_size(file) == n_bytes);
  CHECK_NOTHROW(Reader(file));
  CHECK_FALSE(std::filesystem::exists(file.string() + ".partial"));
}

TEST_CASE("A full disk is an error with the system's words, and leaves nothing") {
  const TempDirectory folder;
  const path file = folder.path() / "a.h5";
  write_dump(file, [](int) {});
  const auto n_whole = static_cast<rlim_t>(std::filesystem::file_size(file));
  std::filesystem::remove(file);
  for (const rlim_t n_bytes : {rlim_t{0}, rlim_t{100}, rlim_t{3000}, rlim_t{1'000'000}, n_whole / 2, n_whole - 1}) {
    std::string text;
    {
      const FileSizeLimit limit(n_bytes);
      text = error_of([&] { write_dump(file, [](int) {}); });
    }
    INFO(n_bytes << " of " << n_whole << " bytes: " << text);
    CHECK_THAT(text, ContainsSubstring("a.h5.partial") && ContainsSubstring("File too large") &&
                         ContainsSubstring("run again"));
    CHECK(nothing_left(file));
  }
  const FileSizeLimit enough(n_whole);
  CHECK(error_of([&] { write_dump(file, [](int) {}); }) == "no error");
}

TEST_CASE("After a failed write the file is never called complete, even if there is room again") {
  const TempDirectory folder;
  const path file = folder.path() / "a.h5";
  {
    Writer writer(file, kHeader);
    writer.begin_prompt("p", std::vector<std::int32_t>(kRows, 1), "");
    const std::vector<std::int64_t> row_dims = {kWidth};
    std::vector<float> rows(kRows * kWidth);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * i % 1'000'003);
    {
      const FileSizeLimit limit(100'000);
      CHECK_THROWS_AS(writer.write_rows("embedding", kRows, row_dims, 0, std::span<const float>(rows)), Error);
    }
    CHECK_THROWS_AS(writer.finish(0, 0), std::logic_error);
  }
  CHECK(nothing_left(file));
}

TEST_CASE("A file system without space is an error that says so") {
  const TempDirectory folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) KALIBRI_SKIP("this user cannot mount a tmpfs");
  const path file = folder.path() / "a.h5";
  const std::string text = error_of([&] { write_dump(file, [](int) {}); });
  const bool clean = nothing_left(file);
  umount(folder.path().c_str());
  CHECK_THAT(text, ContainsSubstring("a.h5.partial") && ContainsSubstring("No space left on device"));
  CHECK(clean);
}

TEST_CASE("A place that cannot be written is named before anything is computed") {
  const TempDirectory folder;
  CHECK_THROWS_WITH(Writer(folder.path() / "missing" / "a.h5", kHeader),
                    ContainsSubstring("missing/a.h5.partial: cannot be created") && ContainsSubstring("No such file"));
  std::ofstream(folder.path() / "file") << "x";
  CHECK_THROWS_WITH(Writer(folder.path() / "file" / "a.h5", kHeader), ContainsSubstring("Not a directory"));
  CHECK_THROWS_WITH(Writer(folder.path(), kHeader), ContainsSubstring("exists and is no file"));
  CHECK_THROWS_WITH(Writer("/dev/null", kHeader), ContainsSubstring("/dev/null: exists and is no file"));
  CHECK(std::filesystem::is_character_file("/dev/null"));

  // As root, every folder can be written: act as a user who cannot.
  const path closed = folder.path() / "closed";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  const bool is_root = geteuid() == 0;
  if (is_root) REQUIRE(seteuid(65534) == 0);
  const std::string text = error_of([&] { Writer(closed / "a.h5", kHeader); });
  if (is_root) REQUIRE(seteuid(0) == 0);
  CHECK_THAT(text,
             ContainsSubstring("closed/a.h5.partial: cannot be created") && ContainsSubstring("Permission denied"));
}

TEST_CASE("Two runs cannot write the same dump at once") {
  const TempDirectory folder;
  const path file = folder.path() / "a.h5";
  {
    const Writer first(file, kHeader);
    CHECK_THROWS_WITH(Writer(file, kHeader), ContainsSubstring("a.h5.partial: another run is writing it"));
    CHECK(std::filesystem::exists(file.string() + ".partial"));
  }
  CHECK_NOTHROW(Writer(file, kHeader));
}

TEST_CASE("A dump that cannot be put in place at the end leaves nothing") {
  const TempDirectory folder;
  const path file = folder.path() / "a.h5";
  CHECK_THROWS_WITH(write_dump(file,
                               [&](int layer) {
                                 if (layer == 0) std::filesystem::create_directory(file);
                               }),
                    ContainsSubstring("a.h5: cannot be put in place"));
  CHECK(std::filesystem::is_directory(file));
  CHECK_FALSE(std::filesystem::exists(file.string() + ".partial"));
}

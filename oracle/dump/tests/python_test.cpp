// Dumps go both ways between this library and h5py, which is how other engines' authors will write and read them.
#include "fixtures/python.hpp"

#include <fstream>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/writer.hpp"

namespace {

using namespace kalibri::dump;
using kalibri::fixtures::run_python;
using kalibri::fixtures::RunResult;
using kalibri::fixtures::TempDirectory;

bool has_h5py() { return run_python({"-c", "import h5py, numpy"}).exit_status == 0; }

constexpr const char* kNoH5py = "Python has no h5py (Debian: python3-h5py; KALIBRI_PYTHON names another Python)";

}  // namespace

TEST_CASE("The ten-line example writes a valid dump") {
  if (!has_h5py()) KALIBRI_SKIP(kNoH5py);
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  const RunResult run = run_python({KALIBRI_SOURCE_DIR "/oracle/dump/example.py", path.string()});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  const Reader reader(path);
  CHECK(reader.header().producer == "my engine");
  CHECK(reader.header().model_type == "kolibri1");
  CHECK(reader.header().mode == "chained");
  CHECK(reader.header().checkpoint_fingerprint.empty());
  REQUIRE(reader.prompts().size() == 1);
  CHECK(reader.prompts()[0].name == "hello");
  CHECK(reader.prompts()[0].tokens == std::vector<std::int32_t>{5, 0, 7});
  CHECK(reader.prompts()[0].positions == std::vector<std::int64_t>{0, 1, 2});
  CHECK(reader.find("hello", "logits")->shape == std::vector<std::int64_t>{3, 100});
  CHECK(reader.read_f64("hello", "logits", 0, 3).size() == 300);

  // "Ten lines" is what the README promises.
  std::ifstream file(KALIBRI_SOURCE_DIR "/oracle/dump/example.py");
  int n_lines = 0;
  for (std::string line; std::getline(file, line);) n_lines += line.empty() || line[0] == '#' ? 0 : 1;
  CHECK(n_lines <= 10);
}

TEST_CASE(
    "What h5py users write without thinking is understood: booleans, bytes, int64, big-endian, gzip, new formats") {
  if (!has_h5py()) KALIBRI_SKIP(kNoH5py);
  const TempDirectory folder;
  for (const std::string libver : {"earliest", "v110"}) {
    const auto path = folder.path() / (libver + ".h5");
    const RunResult run = run_python({"-c", R"(
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w", libver=sys.argv[2]) as f:
    f.attrs["format"] = np.bytes_(b"kalibri-dump")
    f.attrs["version"] = np.uint8(1)
    f.attrs["complete"] = True
    f.attrs["producer"] = "Zürich"
    f.attrs["options"] = "x" * 100000 if sys.argv[2] == "v110" else "{}"
    f.attrs["wall_s"] = 3
    p = f.create_group("prompts/p")
    p["tokens"] = np.array([1, 2, 3])
    p.create_dataset("logits", data=np.arange(12, dtype=">f8").reshape(3, 4))
    big = np.arange(3 * 50000, dtype="f4").reshape(3, 50000)
    p.create_dataset("layers/00/residual", data=big, compression="gzip", shuffle=True, fletcher32=True)
    p.create_dataset("layers/00/expert_ids", data=np.array([[1, 0], [2, 3], [0, 4]], dtype=">i4"))
    p.create_dataset("layers/00/taps/strange", data=big.astype("f2"), compression="lzf")
)",
                                      path.string(), libver});
    INFO(run.err);
    REQUIRE(run.exit_status == 0);
    const Reader reader(path);
    CHECK(reader.header().producer == "Zürich");
    CHECK(reader.header().options.size() == (libver == "v110" ? 100'000 : 2));
    CHECK(reader.wall_s() == 3);
    CHECK(reader.prompts()[0].tokens == std::vector<std::int32_t>{1, 2, 3});
    CHECK(reader.read_f64("p", "logits", 1, 1) == std::vector<double>{4, 5, 6, 7});
    CHECK(reader.find("p", "logits")->type == ElementType::f64);
    CHECK(reader.read_f64("p", "layers/00/residual", 2, 1).back() == 149'999);
    CHECK(reader.read_i64("p", "layers/00/expert_ids", 1, 2) == std::vector<std::int64_t>{2, 3, 0, 4});
    CHECK(reader.unknown() == std::vector<std::string>{"p/layers/00/taps/strange"});
    CHECK_FALSE(reader.find("p", "layers/00/taps/strange").has_value());
  }
}

TEST_CASE("h5py reads our dumps") {
  if (!has_h5py()) KALIBRI_SKIP(kNoH5py);
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  std::vector<float> logits(3 * 30'000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i) * 0.5f;
  {
    Writer writer(path, Header{"kalibri", "0.1.0", "kolibri1", 1, "chained", "ab", "exact", "{}"});
    writer.begin_prompt("größe", std::vector<std::int32_t>{5, 0, 7}, "00");
    writer.write_rows("logits", 3, std::vector<std::int64_t>{30'000}, 0, std::span<const float>(logits));
    writer.finish(7, 0.25);
  }
  const RunResult run = run_python({"-c", R"(
import sys, h5py, numpy as np
with h5py.File(sys.argv[1]) as f:
    plain = lambda value: value.decode() if isinstance(value, bytes) else value
    assert {k: plain(f.attrs[k]) for k in f.attrs} == {
        "format": "kalibri-dump", "version": 1, "complete": 1, "n_streams": 1, "producer": "kalibri", "producer_version": "0.1.0",
        "model_type": "kolibri1", "mode": "chained", "checkpoint_fingerprint": "ab", "precision": "exact", "options": "{}",
        "peak_rss_bytes": 7, "wall_s": 0.25}, dict(f.attrs)
    p = f["prompts/größe"]
    assert plain(p.attrs["text_sha256"]) == "00"
    assert p["tokens"].dtype == "<i4" and list(p["tokens"]) == [5, 0, 7]
    logits = p["logits"]
    assert logits.dtype == "<f4" and plain(logits.attrs["dims"]) == "P,V" and logits.compression == "gzip" and logits.fletcher32
    assert np.array_equal(logits[:], (np.arange(90000) * 0.5).astype("f4").reshape(3, 30000))
print("read")
)",
                                    path.string()});
  INFO(run.err);
  CHECK(run.out == "read\n");
}

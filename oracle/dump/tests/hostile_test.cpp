// Hostile and damaged files: no claim of a file makes the reader follow a link out of it, run in circles or allocate
// much.
#include <array>
#include <fstream>
#include <sstream>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/tests/foreign_file.hpp"
#include "oracle/dump/writer.hpp"

namespace {

using namespace kalibri::dump;
using namespace kalibri::dump::test;
using hdf5::Handle;
using kalibri::fixtures::TempDirectory;

Handle chunked(const std::vector<hsize_t>& chunk) {
  Handle options(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(options.id(), static_cast<int>(chunk.size()), chunk.data());
  return options;
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

TEST_CASE("Links that lead elsewhere or back are not followed") {
  const TempDirectory elsewhere;
  const std::string other = (elsewhere.path() / "other.h5").string();
  { const ForeignFile file(other); }
  const std::array cases = {
      Case{"external dataset",
           [&](auto& f) {
             f.remove("prompts/p/logits");
             H5Lcreate_external(other.c_str(), "/prompts/p/logits", f.id(), "prompts/p/logits", H5P_DEFAULT,
                                H5P_DEFAULT);
           },
           "/prompts/p/logits: a soft or external link"},
      Case{"external prompt",
           [&](auto& f) {
             H5Lcreate_external(other.c_str(), "/prompts/p", f.id(), "prompts/q", H5P_DEFAULT, H5P_DEFAULT);
           },
           "/prompts/q: a soft or external link"},
      Case{"external prompts",
           [&](auto& f) {
             f.remove("prompts");
             H5Lcreate_external(other.c_str(), "/prompts", f.id(), "prompts", H5P_DEFAULT, H5P_DEFAULT);
           },
           "no group /prompts"},
      Case{
          "soft link",
          [](auto& f) { H5Lcreate_soft("/prompts/p/logits", f.id(), "prompts/p/embedding", H5P_DEFAULT, H5P_DEFAULT); },
          "/prompts/p/embedding: a soft or external link"},
      Case{"soft link to nothing",
           [](auto& f) { H5Lcreate_soft("/nothing", f.id(), "prompts/p/x", H5P_DEFAULT, H5P_DEFAULT); },
           "/prompts/p/x: a soft or external link"},
      Case{"cycle",
           [](auto& f) { H5Lcreate_hard(f.id(), "prompts", f.id(), "prompts/p/loop", H5P_DEFAULT, H5P_DEFAULT); },
           "lead back into themselves"},
      Case{"cycle by the root",
           [](auto& f) { H5Lcreate_hard(f.id(), "/", f.id(), "prompts/p/loop", H5P_DEFAULT, H5P_DEFAULT); },
           "lead back into themselves"},
      Case{"the same prompt twice",
           [](auto& f) { H5Lcreate_hard(f.id(), "prompts/p", f.id(), "prompts/q", H5P_DEFAULT, H5P_DEFAULT); },
           "lead back into themselves"},
      Case{"too deep", [](auto& f) { f.group("prompts/p/a/b/c/d/e/f/g/h/i/j"); }, "too deep"},
      Case{"a name with escapes", [](auto& f) { f.group("prompts/\x1b[2J"); }, "a name that is no printable UTF-8"},
      Case{"a name of another encoding",
           [](auto& f) {
             f.group(
                 "prompts/gr\xf6\xdf"
                 "e");
           },
           "a name that is no printable UTF-8"},
      Case{"data in another file",
           [](auto& f) {
             const Handle options(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
             H5Pset_external(options.id(), "/etc/passwd", 0, 48);
             f.remove("prompts/p/logits");
             f.declare("prompts/p/logits", f32(), {3, 4}, options.id());
           },
           "its data lie in another file"},
      Case{"virtual dataset",
           [&](auto& f) {
             const Handle options(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
             const hsize_t shape[2] = {3, 4};
             const Handle space(H5Screate_simple(2, shape, nullptr), H5Sclose);
             H5Pset_virtual(options.id(), space.id(), other.c_str(), "/prompts/p/logits", space.id());
             f.remove("prompts/p/logits");
             f.declare("prompts/p/logits", f32(), {3, 4}, options.id());
           },
           "a virtual dataset"},
      Case{"a named type",
           [](auto& f) {
             const Handle type(H5Tcopy(H5T_NATIVE_INT), H5Tclose);
             H5Tcommit2(f.id(), "prompts/p/embedding", type.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
           },
           "/prompts/p/embedding: no dataset"},
  };
  check_refused(cases);
}

TEST_CASE("Claims without data behind them are refused, not allocated") {
  const auto declare = [](const ForeignFile& file, const std::vector<hsize_t>& shape, hid_t options) {
    file.remove("prompts/p/logits");
    file.declare("prompts/p/logits", f32(), shape, options);
  };
  const hsize_t huge = hsize_t{1} << 40;
  const std::array cases = {
      Case{"contiguous, never written",
           [&](auto& f) {
             declare(f, {3, 4}, H5P_DEFAULT);
           },
           "claims data that the file does not hold"},
      Case{"2^40 columns without a chunk",
           [&](auto& f) {
             declare(f, {3, huge}, chunked({1, 1000}).id());
           },
           "too large"},
      Case{"2^40 rows without a chunk",
           [&](auto& f) {
             declare(f, {huge, 4}, chunked({1000, 4}).id());
           },
           "too large"},
      Case{"a product beyond 64 bits",
           [&](auto& f) {
             f.declare("prompts/p/embedding", f32(), {huge, huge}, chunked({1, 1}).id());
           },
           "too large"},
      Case{"a product of small axes",
           [&](auto& f) {
             f.declare("prompts/p/embedding", f32(), {3, 1 << 24, 1 << 24, 1 << 24}, chunked({1, 1, 1, 1}).id());
           },
           "too large"},
      Case{"2^24 columns without a chunk",
           [&](auto& f) {
             declare(f, {3, 1 << 24}, chunked({1, 1 << 20}).id());
           },
           "claims data that the file does not hold"},
      Case{"one chunk of two",
           [&](auto& f) {
             f.remove("prompts/p/logits");
             const Handle made = f.declare("prompts/p/logits", f32(), {3, 4}, chunked({2, 4}).id());
             const hsize_t start[2] = {0, 0};
             const hsize_t count[2] = {2, 4};
             const Handle rows(H5Dget_space(made.id()), H5Sclose);
             H5Sselect_hyperslab(rows.id(), H5S_SELECT_SET, start, nullptr, count, nullptr);
             const Handle memory(H5Screate_simple(2, count, nullptr), H5Sclose);
             const float values[8] = {};
             H5Dwrite(made.id(), H5T_NATIVE_FLOAT, memory.id(), rows.id(), H5P_DEFAULT, values);
           },
           "claims data that the file does not hold"},
      Case{"a chunk of 2 GiB",
           [&](auto& f) {
             const Handle options = chunked({32, 1 << 24});
             H5Pset_deflate(options.id(), 1);
             f.declare("prompts/p/embedding", f32(), {32, 1 << 24}, options.id());
           },
           "chunks above 1 GiB"},
      Case{"an unknown filter",
           [&](auto& f) {
             const Handle options = chunked({3, 4});
             H5Pset_filter(options.id(), 32000, H5Z_FLAG_OPTIONAL, 0, nullptr);
             declare(f, {3, 4}, options.id());
           },
           "filter 32000 is not supported"},
      Case{"no shape",
           [](auto& f) {
             f.remove("prompts/p/logits");
             const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
             const Handle made(
                 H5Dcreate2(f.id(), "prompts/p/logits", f32(), space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                 H5Dclose);
           },
           "expected 1 to 4 axes"},
      Case{"nothing at all",
           [](auto& f) {
             f.remove("prompts/p/logits");
             const Handle space(H5Screate(H5S_NULL), H5Sclose);
             const Handle made(
                 H5Dcreate2(f.id(), "prompts/p/logits", f32(), space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                 H5Dclose);
           },
           "expected 1 to 4 axes"},
      Case{"texts for logits",
           [](auto& f) {
             const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
             H5Tset_size(type.id(), H5T_VARIABLE);
             f.remove("prompts/p/logits");
             f.declare("prompts/p/logits", type.id(), {3, 4}, H5P_DEFAULT);
           },
           "neither 32- or 64-bit floats"},
  };
  check_refused(cases);
}

TEST_CASE("Missing chunks are noticed in the chunk indices of newer formats too") {
  // One chunk, a fixed number of chunks, a growing axis, two growing axes: HDF5 1.10 keeps four kinds of index.
  const hsize_t shape[2] = {6, 8};
  for (const auto& [growing, chunk] : {std::pair{0, hsize_t{6}}, {0, hsize_t{2}}, {1, hsize_t{2}}, {2, hsize_t{2}}}) {
    for (const bool is_whole : {true, false}) {
      const TempDirectory folder;
      const auto path = folder.path() / "a.h5";
      {
        const ForeignFile file(path, H5F_LIBVER_V110);
        const hsize_t most[2] = {growing > 0 ? H5S_UNLIMITED : 6, growing > 1 ? H5S_UNLIMITED : 8};
        const Handle space(H5Screate_simple(2, shape, most), H5Sclose);
        const Handle made(H5Dcreate2(file.id(), "prompts/p/extra", f32(), space.id(), H5P_DEFAULT,
                                     chunked({chunk, 8}).id(), H5P_DEFAULT),
                          H5Dclose);
        const hsize_t start[2] = {0, 0};
        const hsize_t count[2] = {is_whole ? 6 : 6 - chunk, 8};
        H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start, nullptr, count, nullptr);
        const std::vector<float> values(48, 1.0f);
        if (count[0] > 0) H5Dwrite(made.id(), H5T_NATIVE_FLOAT, space.id(), space.id(), H5P_DEFAULT, values.data());
      }
      const Reader reader(path);
      INFO(growing << " growing axes, chunks of " << chunk << " rows, whole: " << is_whole);
      CHECK(reader.unknown() == std::vector<std::string>{"p/extra"});
      CHECK(reader.find("p", "extra").has_value() == is_whole);
    }
  }
}

TEST_CASE("A changed byte anywhere in a dump of ours is noticed, or changes nothing") {
  const TempDirectory folder;
  const auto path = folder.path() / "whole.h5";
  {
    Writer writer(path, Header{"kalibri", "0.1.0", "kolibri1", 1, "chained", std::string(64, 'a'), "exact", "{}"});
    const std::vector<float> rows(3 * 16, 0.37f);
    const std::vector<std::int64_t> row_dims = {16};
    writer.begin_prompt("p", std::vector<std::int32_t>{5, 0, 7}, std::string(64, 'b'));
    for (int layer = 0; layer < 10; ++layer) {  // more than 8: HDF5 then keeps a group's members in another way
      writer.write_rows(layer_path(layer, "residual"), 3, row_dims, 0, std::span<const float>(rows));
    }
    writer.write_rows("logits", 3, row_dims, 0, std::span<const float>(rows));
    writer.finish(1, 1);
  }
  const auto everything = [](const std::filesystem::path& file) {
    const Reader reader(file);
    const Header& header = reader.header();
    std::ostringstream text;
    text << header.producer << header.producer_version << header.model_type << header.n_streams << header.mode
         << header.checkpoint_fingerprint << header.precision << header.options << reader.peak_rss_bytes()
         << reader.wall_s();
    for (const PromptInfo& prompt : reader.prompts()) {
      text << prompt.name << prompt.text_sha256;
      for (const std::int32_t token : prompt.tokens) text << ' ' << token;
      for (const double logit : reader.read_f64(prompt.name, "logits", 0, 3)) text << ' ' << logit;
      for (const std::int64_t layer : prompt.layers) {
        text << " layer " << layer;
        for (const double value : reader.read_f64(prompt.name, layer_path(layer, "residual"), 0, 3))
          text << ' ' << value;
      }
    }
    return text.str();
  };
  const std::string bytes = read_bytes(path);
  const std::string expected = everything(path);
  const auto changed = folder.path() / "changed.h5";
  const std::size_t stride = 101;  // a prime, so that all places within a block come up
  const auto n_before = n_open();
  int n_refused = 0;
  for (std::size_t i = 0; i < bytes.size(); i += stride) {
    std::string copy = bytes;
    copy[i] = static_cast<char>(copy[i] ^ (1 << (i % 8)));
    std::ofstream(changed, std::ios::binary) << copy;
    INFO("byte " << i << " of " << bytes.size());
    std::string found = expected;
    try {
      found = everything(changed);
    } catch (const Error&) {
      ++n_refused;
    }
    CHECK(found == expected);
    CHECK(n_open() == n_before);
  }
  CHECK(n_refused > static_cast<int>(bytes.size() / stride / 2));  // most bytes mean something
}

TEST_CASE("A file cut short anywhere is refused") {
  const TempDirectory folder;
  const auto whole = folder.path() / "whole.h5";
  { const ForeignFile file(whole); }
  const std::string bytes = read_bytes(whole);
  REQUIRE(bytes.size() > 2000);
  const auto cut = folder.path() / "cut.h5";
  for (std::size_t size = 0; size < bytes.size(); size += size < 128 ? 1 : 61) {
    std::ofstream(cut, std::ios::binary) << bytes.substr(0, size);
    INFO(size << " of " << bytes.size() << " bytes");
    CHECK_THROWS_AS(Reader(cut), Error);
  }
}

// Files of other producers: what is valid is read, what is not is refused with the place, what was found and what was
// expected.
#include <array>
#include <fstream>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/tests/foreign_file.hpp"

namespace {

using namespace kalibri::dump;
using namespace kalibri::dump::test;
using Catch::Matchers::ContainsSubstring;
using hdf5::Handle;
using kalibri::fixtures::TempDirectory;

}  // namespace

TEST_CASE("Token ids and logits of one prompt with three attributes are a valid dump") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  { const ForeignFile file(path); }
  const Reader reader(path);
  CHECK(reader.header().producer.empty());
  CHECK(reader.header().checkpoint_fingerprint.empty());
  CHECK(reader.header().precision.empty());
  CHECK(reader.header().n_streams == 1);
  CHECK(reader.header().mode == "chained");
  CHECK(reader.peak_rss_bytes() == 0);
  CHECK(reader.prompts()[0].name == "p");
  CHECK(reader.prompts()[0].positions == std::vector<std::int64_t>{0, 1, 2});
  CHECK(reader.prompts()[0].layers.empty());
  CHECK(reader.read_f64("p", "logits", 0, 3) == std::vector<double>(12, 0.0));
}

TEST_CASE("What the format does not know is allowed anywhere, and listed") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  {
    const ForeignFile file(path);
    file.attribute("/", "weather", "fine");
    file.group("other");
    file.group("prompts/p/empty");
    file.dataset("prompts/p/entropy", f32(), {3}, {1, 2, 3});
    file.dataset("prompts/p/layers/00/taps/state/delta", f32(), {2, 2});
    file.dataset("prompts/p/layers/00/taps/bytes", H5T_STD_U8LE, {2});
    file.dataset("prompts/p/decode/a/entropy", f32(), {3});
  }
  const Reader reader(path);
  CHECK(reader.unknown() == std::vector<std::string>{"p/decode/a/entropy", "p/entropy", "p/layers/00/taps/bytes",
                                                     "p/layers/00/taps/state/delta"});
  CHECK(reader.read_f64("p", "entropy", 1, 2) == std::vector<double>{2, 3});
  CHECK(reader.find("p", "layers/00/taps/state/delta").has_value());
  CHECK_FALSE(reader.find("p", "layers/00/taps/bytes").has_value());
}

TEST_CASE("A file that is no dump is refused: what it is instead, and what to give") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  CHECK_THROWS_WITH(Reader(path), ContainsSubstring("a.h5: no such file"));
  CHECK_THROWS_WITH(Reader(folder.path()), ContainsSubstring("no regular file"));
  CHECK_THROWS_WITH(Reader("/dev/zero"), ContainsSubstring("/dev/zero: no regular file"));
  std::ofstream(path).close();
  CHECK_THROWS_WITH(Reader(path), ContainsSubstring("a.h5: empty"));
  std::ofstream(path) << "{\"tokens\": [1, 2, 3]}";
  CHECK_THROWS_WITH(Reader(path), ContainsSubstring("a.h5: not a dump"));
  { const Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose); }
  CHECK_THROWS_WITH(Reader(path), ContainsSubstring("a.h5: an HDF5 file but no dump: attribute format is missing"));
}

TEST_CASE("Root attributes that are missing, of another type or value are refused") {
  const auto number_array = [](const ForeignFile& file, const char* name) {
    H5Adelete(file.id(), name);
    const hsize_t size = 2;
    const Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
    const Handle made(H5Acreate2(file.id(), name, H5T_STD_I32LE, space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  };
  const auto no_value = [](const ForeignFile& file, const char* name) {
    const Handle space(H5Screate(H5S_NULL), H5Sclose);
    const Handle made(H5Acreate2(file.id(), name, H5T_STD_I32LE, space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  };
  const auto fixed_text = [](const ForeignFile& file, const char* name, std::string text, std::size_t size) {
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.id(), size);
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle made(H5Acreate2(file.id(), name, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    text.resize(size);
    H5Awrite(made.id(), type.id(), text.data());
  };
  const std::array cases = {
      Case{"format of another kind", [](auto& f) { f.attribute("/", "format", "other"); },
           "attribute format is 'other'"},
      Case{"format a number", [](auto& f) { f.attribute("/", "format", 1); }, "attribute format: no text"},
      Case{"no version", [](auto& f) { H5Adelete(f.id(), "version"); }, "dump version missing"},
      Case{"version 2", [](auto& f) { f.attribute("/", "version", 2); },
           "dump version 2, this program reads version 1"},
      Case{"version a text", [](auto& f) { f.attribute("/", "version", "1"); }, "attribute version: no integer"},
      Case{"version a list", [&](auto& f) { number_array(f, "version"); }, "attribute version: an array or empty"},
      Case{"not complete", [](auto& f) { f.attribute("/", "complete", 0); }, "unfinished"},
      Case{"complete missing", [](auto& f) { H5Adelete(f.id(), "complete"); }, "unfinished"},
      Case{"producer a number", [](auto& f) { f.attribute("/", "producer", 1); }, "attribute producer: no text"},
      Case{"options not UTF-8", [](auto& f) { f.attribute("/", "options", "\xe9"); },
           "attribute options: no valid UTF-8"},
      Case{"model_type with escapes", [&](auto& f) { fixed_text(f, "model_type", "\x1b[2J", 8); },
           "attribute model_type: no valid UTF-8"},
      Case{"n_streams 0", [](auto& f) { f.attribute("/", "n_streams", 0); }, "attribute n_streams is 0"},
      Case{"n_streams nothing", [&](auto& f) { no_value(f, "n_streams"); }, "attribute n_streams: an array or empty"},
      Case{"unknown mode", [](auto& f) { f.attribute("/", "mode", "free"); }, "attribute mode is 'free'"},
      Case{"wall_s a text", [](auto& f) { f.attribute("/", "wall_s", "long"); }, "attribute wall_s: no number"},
      Case{"text_sha256 a number", [](auto& f) { f.attribute("prompts/p", "text_sha256", 1); },
           "/prompts/p: attribute text_sha256: no text"},
  };
  check_refused(cases);
}

TEST_CASE("A text may be padded with zeros or spaces") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  {
    const ForeignFile file(path);
    for (const auto& [name, padding] :
         {std::pair{"producer", H5T_STR_NULLPAD}, {"precision", H5T_STR_SPACEPAD}, {"model_type", H5T_STR_NULLTERM}}) {
      const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
      H5Tset_size(type.id(), 5);
      H5Tset_strpad(type.id(), padding);
      const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
      const Handle made(H5Acreate2(file.id(), name, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
      H5Awrite(made.id(), type.id(),
               padding == H5T_STR_SPACEPAD  ? "ab   "
               : padding == H5T_STR_NULLPAD ? "abcde"
                                            : "abcd");
    }
  }
  const Reader reader(path);
  CHECK(reader.header().producer == "abcde");
  CHECK(reader.header().precision == "ab");
  CHECK(reader.header().model_type == "abcd");
}

TEST_CASE("Prompts without tokens, or with tokens that are none, are refused") {
  const std::array cases = {
      Case{"no prompts", [](auto& f) { f.remove("prompts"); }, "no group /prompts"},
      Case{"prompts a dataset", [](auto& f) { f.replace("prompts", f32(), {1}); }, "no group /prompts"},
      Case{"empty prompts", [](auto& f) { f.remove("prompts/p"); }, "no prompt below /prompts"},
      Case{"a dataset for a prompt", [](auto& f) { f.dataset("prompts/q", f32(), {1}); },
           "/prompts/q: a dataset, expected a prompt's group"},
      Case{"no tokens", [](auto& f) { f.remove("prompts/p/tokens"); }, "/prompts/p: no dataset tokens"},
      Case{"tokens a group",
           [](auto& f) {
             f.remove("prompts/p/tokens");
             f.group("prompts/p/tokens");
           },
           "/prompts/p/tokens: a group, expected a dataset"},
      Case{"no token", [](auto& f) { f.replace("prompts/p/tokens", i32(), {0}); }, "it is empty"},
      Case{"floats", [](auto& f) { f.replace("prompts/p/tokens", f32(), {3}); }, "holds floats, expected integers"},
      Case{"unsigned", [](auto& f) { f.replace("prompts/p/tokens", H5T_STD_U32LE, {3}); }, "signed integers"},
      Case{"two axes",
           [](auto& f) {
             f.replace("prompts/p/tokens", i32(), {1, 3});
           },
           "shape [1, 3], expected [T]"},
      Case{"negative",
           [](auto& f) {
             f.remove("prompts/p/tokens");
             f.dataset("prompts/p/tokens", i32(), {3}, {1, -7, 2});
           },
           "token -7 at position 1"},
      Case{"beyond 32 bits",
           [](auto& f) {
             f.remove("prompts/p/tokens");
             f.dataset("prompts/p/tokens", H5T_STD_I64LE, {3}, {1, 2, 2147483648});
           },
           "token 2147483648 at position 2"},
  };
  check_refused(cases);
}

TEST_CASE("Shapes that contradict each other are refused with both places") {
  const std::array cases = {
      Case{"logits of fewer positions",
           [](auto& f) {
             f.replace("prompts/p/logits", f32(), {2, 4});
           },
           "/prompts/p/logits: shape [2, 4], expected [P,V] with P = 3 as in p/tokens"},
      Case{"logits with three axes",
           [](auto& f) {
             f.replace("prompts/p/logits", f32(), {3, 4, 1});
           },
           "expected [P,V]"},
      Case{"empty logits",
           [](auto& f) {
             f.replace("prompts/p/logits", f32(), {3, 0});
           },
           "it is empty"},
      Case{"integer logits",
           [](auto& f) {
             f.replace("prompts/p/logits", i32(), {3, 4});
           },
           "holds integers, expected floats"},
      Case{"16-bit logits",
           [](auto& f) {
             const Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
             H5Tset_fields(half.id(), 15, 10, 5, 0, 10);
             H5Tset_size(half.id(), 2);
             H5Tset_ebias(half.id(), 15);
             f.replace("prompts/p/logits", half.id(), {3, 4});
           },
           "/prompts/p/logits: neither 32- or 64-bit floats"},
      Case{"another vocabulary",
           [](auto& f) {
             f.group("prompts/q");
             f.dataset("prompts/q/tokens", i32(), {1});
             f.dataset("prompts/q/logits", f32(), {1, 5});
           },
           "V = 4 as in p/logits"},
      Case{"positions and logits",
           [](auto& f) {
             f.dataset("prompts/p/positions", i32(), {2}, {0, 2});
           },
           "P = 2 as in p/positions"},
      Case{"positions that fall",
           [](auto& f) {
             f.dataset("prompts/p/positions", i32(), {3}, {0, 2, 1});
           },
           "position 1 after 2"},
      Case{"positions that repeat",
           [](auto& f) {
             f.dataset("prompts/p/positions", i32(), {3}, {0, 1, 1});
           },
           "position 1 after 1"},
      Case{"positions beyond",
           [](auto& f) {
             f.dataset("prompts/p/positions", i32(), {3}, {0, 1, 3});
           },
           "position 3 after 1"},
      Case{"negative positions",
           [](auto& f) {
             f.dataset("prompts/p/positions", i32(), {3}, {-1, 1, 2});
           },
           "position -1 after -1"},
      Case{"embedding rows",
           [](auto& f) {
             f.dataset("prompts/p/embedding", f32(), {2, 8});
           },
           "T = 3 as in p/tokens"},
      Case{"embedding and final norm",
           [](auto& f) {
             f.dataset("prompts/p/embedding", f32(), {3, 8});
             f.dataset("prompts/p/final_norm", f32(), {3, 9});
           },
           "H = 8 as in p/embedding"},
      Case{"two positions axes",
           [](auto& f) {
             f.dataset("prompts/p/position_ids", i32(), {2, 3});
           },
           "expected [3,T] with 3 = 3 as in the format"},
      Case{"a place before the first",
           [](auto& f) {
             f.dataset("prompts/p/position_ids", i32(), {3, 3}, {0, 1, 2, 0, 1, 2, 0, -1, 2});
           },
           "place -1 of token 1 on axis 2, expected 0 or more"},
      Case{"residuals differ",
           [](auto& f) {
             f.dataset("prompts/p/layers/00/residual", f32(), {3, 8});
             f.dataset("prompts/p/layers/01/residual", f32(), {3, 9});
           },
           "R = 8 as in p/layers/00/residual"},
      Case{"streams",
           [](auto& f) {
             f.dataset("prompts/p/embedding", f32(), {3, 8});
             f.dataset("prompts/p/layers/00/residual", f32(), {3, 32});
           },
           "expected attribute n_streams (1) times 8"},
      Case{"ids and weights",
           [](auto& f) {
             f.dataset("prompts/p/layers/00/expert_ids", i32(), {3, 2});
             f.dataset("prompts/p/layers/00/expert_weights", f32(), {3, 3});
           },
           "k = 2 as in p/layers/00/expert_ids"},
      Case{"more chosen than there are",
           [](auto& f) {
             f.dataset("prompts/p/layers/00/expert_ids", i32(), {3, 5});
             f.dataset("prompts/p/layers/00/router_logits", f32(), {3, 4});
           },
           "chooses 5 experts of 4"},
      Case{"float ids",
           [](auto& f) {
             f.dataset("prompts/p/layers/00/expert_ids", f32(), {3, 2});
           },
           "holds floats, expected integers"},
      Case{"gap with two axes",
           [](auto& f) {
             f.dataset("prompts/p/layers/00/router_gap", f32(), {3, 1});
           },
           "shape [3, 1], expected [T]"},
      Case{"tap of fewer rows",
           [](auto& f) {
             f.dataset("prompts/p/layers/00/taps/q", f32(), {2, 8});
           },
           "T = 3"},
      Case{"residual a group", [](auto& f) { f.group("prompts/p/layers/00/residual"); }, "a group, expected a dataset"},
      Case{"layers a dataset", [](auto& f) { f.dataset("prompts/p/layers", f32(), {1}); },
           "/prompts/p/layers: a dataset, expected a group"},
      Case{"a layer a dataset", [](auto& f) { f.dataset("prompts/p/layers/00", f32(), {1}); },
           "/prompts/p/layers/00: a dataset, expected a group"},
      Case{"taps a dataset", [](auto& f) { f.dataset("prompts/p/layers/00/taps", f32(), {1}); },
           "/prompts/p/layers/00/taps: a dataset, expected a group"},
      Case{"one digit", [](auto& f) { f.group("prompts/p/layers/3"); }, "/prompts/p/layers/3: no layer's name"},
      Case{"three digits", [](auto& f) { f.group("prompts/p/layers/003"); }, "no layer's name"},
      Case{"no digits", [](auto& f) { f.group("prompts/p/layers/first"); }, "no layer's name"},
      Case{"a sign", [](auto& f) { f.group("prompts/p/layers/-1"); }, "no layer's name"},
      Case{"beyond 64 bits", [](auto& f) { f.group("prompts/p/layers/99999999999999999999"); }, "no layer's name"},
  };
  check_refused(cases);
}

TEST_CASE("A schedule that does not say which rows it has, or has more than the prompt, is refused") {
  const auto schedule = [](const ForeignFile& file, int n_rows, int first_position, int n_prefilled) {
    file.dataset("prompts/p/decode/a/logits", f32(), {static_cast<hsize_t>(n_rows), 4});
    file.attribute("prompts/p/decode/a", "first_position", first_position);
    file.attribute("prompts/p/decode/a", "n_prefilled", n_prefilled);
  };
  const std::array cases = {
      Case{"no attributes",
           [](auto& f) {
             f.dataset("prompts/p/decode/a/logits", f32(), {1, 4});
           },
           "/prompts/p/decode/a: no attribute first_position"},
      Case{"beyond the end", [&](auto& f) { schedule(f, 2, 2, 2); },
           "2 rows from first_position 2 on, but the prompt has 3 tokens"},
      Case{"negative", [&](auto& f) { schedule(f, 2, -1, 2); }, "first_position -1"},
      Case{"prefilled beyond", [&](auto& f) { schedule(f, 1, 2, 4); }, "n_prefilled is 4"},
      Case{"another vocabulary",
           [&](auto& f) {
             schedule(f, 1, 2, 2);
             f.replace("prompts/p/decode/a/logits", f32(), {1, 5});
           },
           "V = 5 as in p/decode/a/logits"},
      Case{"logits a group", [](auto& f) { f.group("prompts/p/decode/a/logits"); }, "a group, expected a dataset"},
  };
  check_refused(cases);
}

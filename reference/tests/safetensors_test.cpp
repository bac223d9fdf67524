// Every claim of a safetensors header that can lie, lying: refused with the file and the tensor named.
#include "reference/safetensors.hpp"

#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

/// What the reader says of a file of these bytes; empty when it takes it.
std::string complaint(const std::string& bytes) {
  const fixtures::TempDirectory folder;
  fixtures::write_file(folder.path() / "model.safetensors", bytes);
  try {
    const SafetensorsFile file(folder.path() / "model.safetensors");
    return "";
  } catch (const Error& error) {
    CHECK_THAT(error.what(), ContainsSubstring("model.safetensors: "));
    return error.what();
  }
}

std::string with_header(const std::string& header, std::size_t n_data_bytes) {
  return fixtures::raw_safetensors(header, std::string(n_data_bytes, '\1'));
}

/// A file whose only tensor is `entry`, called "x".
std::string with_entry(const json& entry, std::size_t n_data_bytes) {
  return with_header(json{{"x", entry}}.dump(), n_data_bytes);
}

json entry(const char* dtype, const json& shape, const json& offsets) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", offsets}};
}

TEST_CASE("a whole file is read, in whatever order its tensors lie") {
  const fixtures::TempDirectory folder;
  const json header{{"__metadata__", {{"format", "pt"}}},
                    {"a", entry("F32", {2, 1}, {4, 12})},
                    {"b", entry("BF16", {2}, {0, 4})},
                    {"none", entry("F32", {0, 7}, {4, 4})},
                    {"scalar", entry("U8", json::array(), {12, 13})}};
  fixtures::write_file(folder.path() / "w.safetensors",
                       fixtures::raw_safetensors(header.dump() + "   ", "0123456789abc"));
  const SafetensorsFile file(folder.path() / "w.safetensors");
  REQUIRE(file.tensors().size() == 4);
  const TensorView& a = file.tensors().at("a");
  CHECK(a.dtype == "F32");
  CHECK(a.shape == std::vector<std::int64_t>{2, 1});
  CHECK(std::string(reinterpret_cast<const char*>(a.bytes.data()), a.bytes.size()) == "456789ab");
  CHECK(file.tensors().at("none").bytes.empty());
  CHECK(file.name() == "w.safetensors");
  CHECK(file.data().size() == 13);
  CHECK(file.header().size() == header.dump().size() + 3);
}

TEST_CASE("a header that is none is refused") {
  CHECK_THAT(complaint(""), ContainsSubstring("too short"));
  CHECK_THAT(complaint("1234567"), ContainsSubstring("too short"));
  CHECK_THAT(complaint(std::string("\x09\0\0\0\0\0\0\0{}", 10)), ContainsSubstring("header of 9 bytes claimed"));
  CHECK_THAT(complaint(std::string(8, '\xff') + "{}"),
             ContainsSubstring("header of 18446744073709551615 bytes claimed"));
  CHECK_THAT(complaint(with_header("", 0)), ContainsSubstring("no valid JSON"));
  CHECK_THAT(complaint(with_header("{\"x\":", 0)), ContainsSubstring("no valid JSON"));
  CHECK_THAT(complaint(with_header("{\"\xff\": 1}", 0)), ContainsSubstring("no valid JSON"));
  CHECK_THAT(complaint(with_header("{\"x\": 1e999}", 0)), ContainsSubstring("no valid JSON"));
  CHECK_THAT(complaint(with_header("[1]", 0)), ContainsSubstring("no JSON object"));
  CHECK_THAT(complaint(with_header(std::string(100'000, '['), 0)), ContainsSubstring("no valid JSON"));
}

TEST_CASE("a tensor whose claims contradict the file or each other is refused") {
  CHECK(complaint(with_entry(entry("F32", {1}, {0, 4}), 4)) == "");  // the healthy one beside them
  CHECK_THAT(complaint(with_entry(entry("F32", {1000, 1000}, {0, 4}), 4)),
             ContainsSubstring("x: F32 [1000, 1000] needs 4000000"));
  CHECK_THAT(complaint(with_entry(entry("U8", {1LL << 33, 1LL << 33}, {0, 4}), 4)),
             ContainsSubstring("larger than any file"));
  CHECK_THAT(complaint(with_entry(entry("F64", {(1LL << 61) + 1}, {0, 8}), 8)),
             ContainsSubstring("larger than any file"));
  CHECK_THAT(complaint(with_entry(entry("F32", {1}, {4, 0}), 4)), ContainsSubstring("x: data_offsets [4, 0]"));
  CHECK_THAT(complaint(with_entry(entry("F32", {1}, {4, 8}), 4)), ContainsSubstring("x: data_offsets [4, 8]"));
  CHECK_THAT(complaint(with_entry(entry("F32", {1}, {0}), 4)), ContainsSubstring("x: data_offsets"));
  CHECK_THAT(complaint(with_entry(entry("F32", {-1}, {0, 4}), 4)), ContainsSubstring("x: 'shape' holds -1"));
  CHECK_THAT(complaint(with_entry(entry("F32", {1.5}, {0, 4}), 4)), ContainsSubstring("x: 'shape' holds 1.5"));
  CHECK_THAT(complaint(with_entry(entry("F32", {1ULL << 63}, {0, 4}), 4)), ContainsSubstring("x: 'shape' holds"));
  CHECK_THAT(complaint(with_entry(entry("F32", 1, {0, 4}), 4)), ContainsSubstring("x: header entry"));
  CHECK_THAT(complaint(with_entry(entry("F31", {1}, {0, 4}), 4)), ContainsSubstring("x: unknown dtype"));
  CHECK_THAT(complaint(with_entry({{"shape", {1}}, {"data_offsets", {0, 4}}}, 4)),
             ContainsSubstring("no text 'dtype'"));
  json more = entry("F32", {1}, {0, 4});
  more["strides"] = {1};
  CHECK_THAT(complaint(with_entry(more, 4)), ContainsSubstring("more than dtype, shape and data_offsets"));
  CHECK_THAT(complaint(with_entry(7, 4)), ContainsSubstring("x: header entry 7"));
}

TEST_CASE("tensors that overlap, or bytes that belong to none, are refused") {
  const json a = entry("F32", {1}, {0, 4});
  CHECK(complaint(with_header(json{{"a", a}, {"b", entry("F32", {1}, {4, 8})}}.dump(), 8)) == "");
  CHECK_THAT(complaint(with_header(json{{"a", a}, {"b", entry("F32", {1}, {2, 6})}}.dump(), 6)),
             ContainsSubstring("b: overlaps a"));
  CHECK_THAT(complaint(with_header(json{{"a", a}, {"b", a}}.dump(), 4)), ContainsSubstring("overlaps"));
  CHECK_THAT(complaint(with_header(json{{"a", a}, {"b", entry("F32", {1}, {5, 9})}}.dump(), 9)),
             ContainsSubstring("b: 1 bytes before it"));
  CHECK_THAT(complaint(with_header(json{{"a", a}}.dump(), 7)), ContainsSubstring("3 bytes after the last tensor"));
  const std::string twice = "{\"a\":" + a.dump() + ",\"a\":" + entry("F32", {1}, {4, 8}).dump() + "}";
  CHECK_THAT(complaint(with_header(twice, 8)), ContainsSubstring("key \"a\" occurs twice"));
}

}  // namespace
}  // namespace kalibri::reference::test

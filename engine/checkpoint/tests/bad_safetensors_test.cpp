// Safetensors files that lie: each is refused with the file, the tensor and the rule in the message.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "engine/checkpoint/safetensors.hpp"
#include "engine/checkpoint/tests/refusal.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::checkpoint {
namespace {

using fixtures::raw_safetensors;

const std::string kSixteenBytes(16, '\0');

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string object(std::string_view content) { return fmt::format("{{{}}}", content); }

/// The file with these bytes must be refused, by its name and with `parts` in the message.
void check_file(std::string_view bytes, std::initializer_list<std::string_view> parts,
                ErrorCode code = ErrorCode::format) {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "lies.safetensors";
  fixtures::write_file(path, bytes);
  test::check_refused(code, {"lies.safetensors"}, [&] { SafetensorsFile{path}; });
  test::check_refused(code, parts, [&] { SafetensorsFile{path}; });
}

/// The same for a header in front of 16 bytes of data.
void check_header(std::string_view header, std::initializer_list<std::string_view> parts) {
  check_file(raw_safetensors(header, kSixteenBytes), parts);
}

/// And for one tensor entry called w.
void check_entry(std::string_view dtype, std::string_view shape, std::string_view offsets, std::string_view part) {
  check_header(object(entry("w", dtype, shape, offsets)), {": w: ", part});
}

TEST_CASE("a file that is not there, is empty or shorter than 8 bytes is refused") {
  test::check_refused(ErrorCode::file, {"/nowhere/a.safetensors", "cannot be opened"},
                      [] { SafetensorsFile{"/nowhere/a.safetensors"}; });
  check_file("", {"0 bytes", "too few"});
  check_file("1234567", {"7 bytes", "too few"});
}

TEST_CASE("a header length past the end of the file is refused") {
  check_file(raw_safetensors("{}", "").substr(0, 9), {"length 2 goes past the end of the file (9 bytes)"});
  check_file(std::string(8, '\xff') + "{}", {"18446744073709551615"});
}

TEST_CASE("a header length above the format's limit is refused") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "long.safetensors";
  std::string length(8, '\0');
  for (int i = 0; i < 4; ++i) length[static_cast<std::size_t>(i)] = static_cast<char>(100'000'001 >> 8 * i);
  fixtures::write_file(path, length);
  std::filesystem::resize_file(path, 200'000'000);
  test::check_refused(ErrorCode::format, {"100000001 exceeds the format's limit 100000000"},
                      [&] { SafetensorsFile{path}; });
}

TEST_CASE("a header that is no JSON object is refused") {
  check_header("", {"does not begin with '{'"});
  check_header("[1]", {"does not begin with '{'"});
  check_header(" {}", {"does not begin with '{'"});
  check_header("{not json}", {"no valid JSON (its byte 3)"});
  check_header(R"({"w":)", {"no valid JSON"});
  check_header("{} {}", {"no valid JSON"});
  check_header("{\"\xff\xfe\":1}", {"no valid JSON"});
  check_header(R"({"w":1e999})", {"no valid JSON"});
}

TEST_CASE("nesting of any depth is refused without a deep stack") {
  check_header(R"({"w":)" + std::string(1'000'000, '['), {"w: is no object"});
  check_header(R"({"w":{"shape":)" + std::string(1'000'000, '['), {"shape holds something other"});
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += R"("w":{)";
  check_header(objects, {"'w' is not what a tensor has"});
}

TEST_CASE("an entry that is no object, or has a field too few, too many or twice, is refused") {
  check_header(R"({"w":3})", {": w: is no object"});
  check_header(R"({"w":{"shape":[4],"data_offsets":[0,16]}})", {": w: dtype is missing"});
  check_header(R"({"w":{"dtype":"F32","data_offsets":[0,16]}})", {": w: shape is missing"});
  check_header(R"({"w":{"dtype":"F32","shape":[4]}})", {": w: data_offsets is missing"});
  check_header(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"strides":[1]}})", {"'strides' is not what"});
  check_header(R"({"w":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})", {"dtype is given twice"});
  check_header(R"({"w":{"dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16]}})", {"shape is given twice"});
  check_header(R"({"w":{"dtype":4,"shape":[4],"data_offsets":[0,16]}})", {"'dtype' is not what"});
  check_header(R"({"w":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})", {"'shape' is not what"});
  check_header(R"({"w":{"dtype":"F32","shape":null,"data_offsets":[0,16]}})", {"'shape' is not what"});
}

TEST_CASE("a tensor name given twice is refused") {
  check_header(object(entry("w", "F32", "[2]", "[0,8]") + "," + entry("w", "F32", "[2]", "[8,16]")),
               {": w: is given twice"});
}

TEST_CASE("metadata that are not an object of strings, or come twice, are refused") {
  check_header(R"({"__metadata__":7})", {"__metadata__: is no object"});
  check_header(R"({"__metadata__":{"format":1}})", {"__metadata__: 'format' is no string"});
  check_header(R"({"__metadata__":{"format":{}}})", {"__metadata__: 'format' is no string"});
  check_header(R"({"__metadata__":{"a":"1","a":"2"}})", {"__metadata__: key 'a' is given twice"});
  check_header(R"({"__metadata__":{},"__metadata__":{}})", {"__metadata__: is given twice"});
}

TEST_CASE("a dtype that the format does not have is refused") {
  check_entry("F33", "[4]", "[0,16]", "unknown dtype 'F33'");
  check_entry("f32", "[4]", "[0,16]", "unknown dtype 'f32'");
}

TEST_CASE("numbers that are negative, fractional or too large are refused") {
  check_entry("F32", "[-4]", "[0,16]", "shape holds something other than whole numbers");
  check_entry("F32", "[4.0]", "[0,16]", "shape holds something other than whole numbers");
  check_entry("F32", "[\"4\"]", "[0,16]", "shape holds something other than whole numbers");
  check_entry("F32", "[4]", "[-16,0]", "data_offsets holds something other than whole numbers");
  check_entry("F32", "[9223372036854775808]", "[0,16]", "shape: 9223372036854775808 is out of range");
  check_entry("F32", "[99999999999999999999]", "[0,16]", "shape holds something other than whole numbers");
}

TEST_CASE("a shape larger than its bytes is refused") {
  check_entry("F32", "[1000,1000]", "[0,4]",
              "shape [1000, 1000] of F32 needs 4000000 bytes, data_offsets [0, 4] hold 4");
  check_entry("BF16", "[9]", "[0,16]", "needs 18 bytes");
}

TEST_CASE("a shape smaller than its bytes is refused") {
  check_entry("F32", "[3]", "[0,16]", "needs 12 bytes, data_offsets [0, 16] hold 16");
  check_entry("F32", "[0]", "[0,16]", "needs 0 bytes");
}

TEST_CASE("a shape whose product overflows is refused") {
  check_entry("F32", "[8589934592,8589934592]", "[0,16]", "shape [8589934592, 8589934592] overflows");
  check_entry("U8", "[4294967296,4294967296,4294967296,4294967296]", "[0,16]", "overflows");
  check_entry("F64", "[1152921504606846976]", "[0,16]", "overflows");  // 2^60 elements of 64 bits
}

TEST_CASE("elements that do not fill whole bytes are refused") {
  check_entry("F4", "[31]", "[0,16]", "shape [31] of F4 needs 16 bytes");
  check_entry("F6_E2M3", "[3]", "[0,3]", "needs 3 bytes");
}

TEST_CASE("offsets that end before they begin are refused") {
  check_entry("F32", "[4]", "[16,0]", "data_offsets [16, 0] end before they begin");
}

TEST_CASE("offsets past the end of the file are refused") {
  check_entry("F32", "[5]", "[0,20]", "data_offsets [0, 20] end past the file's 16 data bytes; truncated?");
  check_entry("U8", "[16]", "[9223372036854775791,9223372036854775807]", "end past the file's 16 data bytes");
}

TEST_CASE("offsets that are no pair are refused") {
  check_entry("F32", "[4]", "[0]", "data_offsets is missing or not [begin, end]");
  check_entry("F32", "[4]", "[0,8,16]", "data_offsets is missing or not [begin, end]");
}

TEST_CASE("more dimensions than anything has are refused") {
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  check_entry("U8", shape + "]", "[0,1]", "shape has more than 64 numbers");
}

TEST_CASE("overlapping tensors are refused") {
  check_header(object(entry("a", "U8", "[12]", "[0,12]") + "," + entry("b", "U8", "[8]", "[8,16]")),
               {": b: overlaps a by 4 bytes"});
  check_header(object(entry("a", "U8", "[16]", "[0,16]") + "," + entry("b", "U8", "[16]", "[0,16]")), {"overlaps"});
  check_header(object(entry("a", "U8", "[16]", "[0,16]") + "," + entry("b", "U8", "[0]", "[8,8]")),
               {": b: overlaps a by 8 bytes"});
}

TEST_CASE("bytes that belong to no tensor are refused, before, between and after") {
  check_entry("U8", "[12]", "[4,16]", "begins 4 bytes after the end of the header");
  check_header(object(entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[8]", "[8,16]")),
               {": b: begins 4 bytes after the end of a"});
  check_header(object(entry("a", "U8", "[4]", "[0,4]")), {"12 bytes after the end of a belong to no tensor"});
  check_header("{}", {"16 bytes after the end of the header belong to no tensor"});
}

TEST_CASE("control characters of a name do not reach the terminal, and long names are cut") {
  check_header(R"({"\u001b[31mred":3})", {": ?[31mred: is no object"});
  check_header(R"({")" + std::string(5000, 'n') + R"(":3})", {std::string(160, 'n') + "...: is no object"});
}

TEST_CASE("a good file of any dtype, with empty tensors, scalars and padding, is read in place") {
  const fixtures::TempDirectory directory;
  const auto path = directory.path() / "good.safetensors";
  const std::string header = object(R"("__metadata__":{"format":"pt"},)" + entry("fp4", "F4", "[4,2]", "[0,4]") + "," +
                                    entry("none", "F32", "[7,0]", "[4,4]") + "," +
                                    entry("scalar", "F32", "[]", "[4,8]") + "," + entry("c", "C64", "[1]", "[8,16]")) +
                             "   ";
  fixtures::write_file(path, raw_safetensors(header, "abcdefghijklmnop"));
  const SafetensorsFile file(path);
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.header().size() == header.size());
  CHECK(file.data().size() == 16);
  CHECK(file.tensors().at("fp4").shape == std::vector<std::int64_t>{4, 2});
  CHECK(file.tensors().at("none").bytes.empty());
  CHECK(file.tensors().at("none").n_elements() == 0);
  CHECK(file.tensors().at("scalar").n_elements() == 1);
  CHECK(file.tensors().at("scalar").bytes.front() == std::byte{'e'});
  CHECK(file.tensors().at("scalar").bytes.data() == file.bytes().data() + file.tensors().at("scalar").file_offset);
  CHECK(dtype_name(file.tensors().at("c").dtype) == "C64");
}

TEST_CASE("a file without tensors is a file") {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "e.safetensors", raw_safetensors("{}", ""));
  CHECK(SafetensorsFile(directory.path() / "e.safetensors").tensors().empty());
}

}  // namespace
}  // namespace kalibri::checkpoint

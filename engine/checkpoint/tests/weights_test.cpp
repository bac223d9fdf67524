// Weights on request: shapes and dtypes, FP8 with its scales, and what is refused. Values are worked out by hand.
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/tensor_places.hpp"
#include "engine/checkpoint/tests/refusal.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::checkpoint {
namespace {

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A directory with one shard of these tensors, whose data begin `misalignment` bytes after a multiple of 8.
class Folder {
 public:
  explicit Folder(const std::vector<Tensor>& tensors, std::size_t misalignment = 0) {
    std::string header;
    std::string data;
    for (const Tensor& t : tensors) {
      header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", header.empty() ? "{" : ",",
                            t.name, t.dtype, shape_text(t.shape), data.size(), data.size() + t.bytes.size());
      data += t.bytes;
    }
    header += "}";
    while (header.size() % 8 != misalignment) header += " ";
    fixtures::write_file(directory_.path() / "config.json", "{}");
    fixtures::write_file(directory_.path() / "model.safetensors", fixtures::raw_safetensors(header, data));
  }
  [[nodiscard]] Checkpoint open() const { return Checkpoint::open(directory_.path()); }

 private:
  fixtures::TempDirectory directory_;
};

/// An FP8 weight "w.weight" [320, 192] of codes 0x38 (1.0) with scales [3, 2] = 1 .. 6.
std::vector<Tensor> fp8_weight() {
  return {{"w.weight", "F8_E4M3", {320, 192}, std::string(320 * 192, '\x38')},
          {"w.weight_scale_inv", "F32", {3, 2}, bytes_of<float>({1, 2, 3, 4, 5, 6})}};
}

void check_matrix(const std::vector<Tensor>& tensors, std::initializer_list<std::string_view> parts) {
  const Folder folder(tensors);
  const Checkpoint checkpoint = folder.open();
  test::check_refused(ErrorCode::tensor, parts, [&] { (void)checkpoint.matrix("w.weight", 320, 192, true); });
}

TEST_CASE("an FP8 weight with partial blocks is a view of its codes and scales") {
  const Folder folder(fp8_weight());
  const Checkpoint checkpoint = folder.open();
  const kernels::MatrixView view = checkpoint.matrix("w.weight", 320, 192, true);
  CHECK(view.format == kernels::Format::e4m3_block);
  CHECK(view.n_rows == 320);
  CHECK(view.n_cols == 192);
  CHECK(view.data == checkpoint.find("w.weight")->bytes.data());
  CHECK(static_cast<const void*>(view.scale_inv) == checkpoint.find("w.weight_scale_inv")->bytes.data());
  CHECK(std::vector<float>(view.scale_inv, view.scale_inv + 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("scales that lie at an odd address are usable all the same") {
  for (const std::size_t misalignment : {1U, 2U, 3U, 5U}) {
    const Folder folder(fp8_weight(), misalignment);
    const Checkpoint checkpoint = folder.open();
    const kernels::MatrixView view = checkpoint.matrix("w.weight", 320, 192, true);
    CHECK(std::bit_cast<std::uintptr_t>(view.scale_inv) % alignof(float) == 0);
    CHECK(std::vector<float>(view.scale_inv, view.scale_inv + 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
  }
}

TEST_CASE("an FP8 weight without its scale is refused") {
  check_matrix({fp8_weight()[0]}, {"w.weight_scale_inv: missing, expected [3, 2]", "run 'kalibri inspect "});
}

TEST_CASE("a scale of the wrong shape or dtype is refused") {
  auto tensors = fp8_weight();
  tensors[1].shape = {2, 3};
  check_matrix(tensors, {"model.safetensors: w.weight_scale_inv: shape [2, 3], expected [3, 2]"});
  tensors[1].shape = {3, 2};
  tensors[1].dtype = "I32";
  check_matrix(tensors, {"model.safetensors: w.weight_scale_inv: dtype I32, expected F32, BF16 or F16"});
}

TEST_CASE("scales in bf16 and f16 are widened exactly") {
  auto tensors = fp8_weight();
  for (const auto& [dtype, one_and_a_half] : {std::pair<const char*, std::uint16_t>{"BF16", 0x3fc0}, {"F16", 0x3e00}}) {
    tensors[1].dtype = dtype;
    tensors[1].bytes = bytes_of<std::uint16_t>(std::vector<std::uint16_t>(6, one_and_a_half));
    const Folder folder(tensors);
    const Checkpoint checkpoint = folder.open();
    const kernels::MatrixView view = checkpoint.matrix("w.weight", 320, 192, true);
    for (int block = 0; block < 6; ++block) CHECK(view.scale_inv[block] == 1.5F);
  }
}

TEST_CASE("a scale that is not finite, or too large for the kernels, is refused when asked") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0x1p16F, -0x1p16F}) {
    auto tensors = fp8_weight();
    tensors[1].bytes = bytes_of<float>({1, 2, 3, bad, 5, 6});
    check_matrix(tensors, {"model.safetensors: w.weight_scale_inv: ",
                           "for block (1, 1), expected a number between -65536 and 65536"});
    const Folder folder(tensors);
    const Checkpoint checkpoint = folder.open();
    CHECK_NOTHROW(checkpoint.matrix("w.weight", 320, 192, false));
  }
}

TEST_CASE("the largest scale that the kernels can use is accepted") {
  auto tensors = fp8_weight();
  tensors[1].bytes = bytes_of<float>({1, 2, 3, 0x1.fffffep15F, 5, -0x1.fffffep15F});
  const Folder folder(tensors);
  const Checkpoint checkpoint = folder.open();
  CHECK_NOTHROW(checkpoint.matrix("w.weight", 320, 192, true));
}

TEST_CASE("both NaN codes are refused wherever they stand, when asked") {
  for (const char code : {'\x7f', '\xff'}) {
    for (const std::size_t at : {0U, 4095U, 4096U, 192U * 77U + 5U, 320U * 192U - 1U}) {
      auto tensors = fp8_weight();
      tensors[0].bytes[at] = code;
      const std::string place = fmt::format("NaN code at ({}, {})", at / 192, at % 192);
      check_matrix(tensors, {"model.safetensors: w.weight: ", place});
      const Folder folder(tensors);
      const Checkpoint checkpoint = folder.open();
      CHECK_NOTHROW(checkpoint.matrix("w.weight", 320, 192, false));
    }
  }
}

TEST_CASE("every code but the two is accepted") {
  auto tensors = fp8_weight();
  for (std::size_t i = 0; i < tensors[0].bytes.size(); ++i) {
    if (const auto code = static_cast<char>(i % 256); code != '\x7f' && code != '\xff') tensors[0].bytes[i] = code;
  }
  const Folder folder(tensors);
  const Checkpoint checkpoint = folder.open();
  CHECK_NOTHROW(checkpoint.matrix("w.weight", 320, 192, true));
}

TEST_CASE("a weight that is missing, of another shape or dtype is refused") {
  check_matrix({{"v", "F32", {1}, std::string(4, '\0')}}, {"w.weight: missing, expected [320, 192] (config.json)"});
  check_matrix({{"w.weight", "F32", {192, 320}, std::string(4 * 192 * 320, '\0')}},
               {"model.safetensors: w.weight: shape [192, 320], expected [320, 192] (config.json)"});
  check_matrix({{"w.weight", "F16", {320, 192}, std::string(2 * 192 * 320, '\0')}},
               {"model.safetensors: w.weight: dtype F16, expected BF16, F32 or F8_E4M3"});
  check_matrix({{"w.weight", "F8_E5M2", {320, 192}, std::string(192 * 320, '\0')}}, {"dtype F8_E5M2"});
}

TEST_CASE("a weight without rows or columns is a view of nothing") {
  const Folder folder({{"w.weight", "F8_E4M3", {0, 192}, ""}, {"w.weight_scale_inv", "F32", {0, 2}, ""}});
  const Checkpoint checkpoint = folder.open();
  CHECK(checkpoint.matrix("w.weight", 0, 192, true).n_rows == 0);
}

TEST_CASE("a vector is widened from BF16 and F32, at any address") {
  for (const std::size_t misalignment : {0U, 1U, 6U}) {
    const Folder folder({{"b16", "BF16", {3}, bytes_of<std::uint16_t>({0x3F80, 0xC040, 0x0001})},
                         {"f32", "F32", {3}, bytes_of<float>({1, -3, 0x1p-133F})}},
                        misalignment);
    const Checkpoint checkpoint = folder.open();
    CHECK(checkpoint.vector("b16", 3) == std::vector<float>{1, -3, 0x1p-133F});
    CHECK(checkpoint.vector("f32", 3) == std::vector<float>{1, -3, 0x1p-133F});
  }
}

TEST_CASE("a vector that is missing, of another shape or dtype is refused") {
  const Folder folder({{"i", "I32", {2}, std::string(8, '\0')}, {"m", "F32", {1, 2}, std::string(8, '\0')}});
  const Checkpoint checkpoint = folder.open();
  test::check_refused(ErrorCode::tensor, {"v: missing, expected [2]"}, [&] { (void)checkpoint.vector("v", 2); });
  test::check_refused(ErrorCode::tensor, {"i: dtype I32, expected BF16 or F32"},
                      [&] { (void)checkpoint.vector("i", 2); });
  test::check_refused(ErrorCode::tensor, {"m: shape [1, 2], expected [2]"}, [&] { (void)checkpoint.vector("m", 2); });
}

TEST_CASE("require names what asks for the shape") {
  const Folder folder({{"m", "F32", {1, 2}, std::string(8, '\0')}});
  const Checkpoint checkpoint = folder.open();
  const std::vector<std::int64_t> shape = {2, 2};
  test::check_refused(ErrorCode::tensor,
                      {"model.safetensors: m: shape [1, 2], expected [2, 2] (config.json hidden_size)"},
                      [&] { (void)checkpoint.require("m", shape, "config.json hidden_size"); });
  CHECK(&checkpoint.require("m", std::vector<std::int64_t>{1, 2}, "") == checkpoint.find("m"));
}

TEST_CASE("a pointer into a checkpoint is found in its tensor and at its place in the file, one outside is not") {
  const Folder folder({{"a", "U8", {3}, "abc"}, {"none", "U8", {0}, ""}, {"b", "U8", {5}, "defgh"}});
  const Checkpoint checkpoint = folder.open();
  const TensorPlaces places(checkpoint);
  const TensorView& b = *checkpoint.find("b");
  for (std::size_t i = 0; i < 5; ++i) {
    const auto place = places.find(b.bytes.data() + i);
    REQUIRE(place.has_value());
    CHECK(place->tensor == "b");
    CHECK(place->file == b.file);
    std::byte read{};
    place->file->read(place->offset, {&read, 1});
    CHECK(read == b.bytes[i]);
  }
  CHECK(places.find(b.bytes.data() - 1)->tensor == "a");
  CHECK_FALSE(places.find(b.bytes.data() + 5).has_value());
  CHECK_FALSE(places.find(checkpoint.find("a")->bytes.data() - 1).has_value());
  CHECK_FALSE(places.find(&places).has_value());
}

}  // namespace
}  // namespace kalibri::checkpoint

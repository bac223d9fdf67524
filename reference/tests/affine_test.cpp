// Packed weights: against vectors made with MLX's own rules, and directories that contradict themselves.
#include "reference/affine.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/affine_config.hpp"
#include "reference/stored_matrix.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

constexpr std::int64_t kRows = 24;
constexpr std::int64_t kCols = 384;

/// The golden vectors of one format, their packed matrix as a module "m" of a checkpoint.
class Vectors {
 public:
  Vectors(const std::filesystem::path& golden, std::int64_t bits, std::int64_t group_size)
      : file_(golden / fmt::format("affine-b{}-g{}.safetensors", bits, group_size)) {
    fixtures::write_file(folder_.path() / "config.json",
                         json{{"quantization", {{"bits", bits}, {"group_size", group_size}}}}.dump());
    fixtures::write_file(folder_.path() / "model.safetensors", fixtures::read_file(file_));
    const fixtures::CheckpointCopy copy(folder_.path());
    copy.edit_header([](json& header) {
      for (const char* name : {"weight", "scales", "biases"}) {
        header[fmt::format("m.{}", name)] = header.at(name);
        header.erase(name);
      }
    });
    fixtures::write_file(folder_.path() / "model.safetensors", fixtures::read_file(copy.weights()));
  }
  [[nodiscard]] Checkpoint checkpoint() const { return Checkpoint(folder_.path()); }
  [[nodiscard]] std::vector<double> values(const std::string& name) const {
    return fixtures::read_safetensors(file_).at(name).values();
  }

 private:
  std::filesystem::path file_;
  fixtures::TempDirectory folder_;
};

std::vector<double> decoded(const StoredMatrix& matrix) {
  std::vector<double> values(static_cast<std::size_t>(matrix.n_rows * matrix.n_cols));
  decode_rows(matrix, 0, matrix.n_rows, values.data());
  return values;
}

TEST_CASE("packed rows of every format decode to MLX's numbers, bit by bit") {
  const auto golden = fixtures::find_golden("mlx-affine");
  if (!golden) KALIBRI_SKIP("no golden data");
  for (const std::int64_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const std::int64_t group_size : {32, 64, 128}) {
      CAPTURE(bits, group_size);
      const Vectors vectors(*golden, bits, group_size);
      const Checkpoint checkpoint = vectors.checkpoint();
      const StoredMatrix matrix = find_matrix(checkpoint, "m.weight", kRows, kCols);
      CHECK(decoded(matrix) == vectors.values("dequantised_f32"));
      CHECK(decoded(matrix) != vectors.values("dequantised_bf16"));
      CHECK(decoded(slice_rows(matrix, 5, 3)).front() == decoded(matrix).at(5 * kCols));
    }
  }
}

/// k1's MLX directory with 8-bit dense weights, to be damaged.
struct Directory {
  fixtures::CheckpointCopy copy;
  void find(const std::string& module = "lm_head") const {
    const Checkpoint checkpoint(copy.directory());
    has_affine_block(checkpoint);
    find_matrix(checkpoint, module + ".weight", 256, 128);
  }
};

TEST_CASE("an MLX directory that contradicts itself is refused, and what is wrong is named") {
  const auto golden = fixtures::find_golden("mlx-affine/kolibri1-k1-mlx-mixed");
  if (!golden) KALIBRI_SKIP("no golden data");
  struct Case {
    std::string text;  // of the message
    std::function<void(const fixtures::CheckpointCopy&)> damage;
  };
  const auto block = [](auto edit) {
    return [edit](const fixtures::CheckpointCopy& copy) {
      copy.edit_config([edit](json& config) {
        edit(config["quantization"]);
        config["quantization_config"] = config["quantization"];
      });
    };
  };
  const auto header = [](auto edit) {
    return [edit](const fixtures::CheckpointCopy& copy) { copy.edit_header(edit); };
  };
  const std::vector<Case> cases{
      {"'quantization_config' is",
       [](const auto& copy) {
         copy.edit_config([](json& c) {
           c.erase("quantization"), c["quantization"] = {{"bits", 4}, {"group_size", 64}};
         });
       }},
      {"lm_head: is packed, but config.json has no 'quantization'",
       [](const auto& copy) { copy.edit_config([](json& c) { c.erase("quantization"); }); }},
      {"'quantization' is 4: expected an object", block([](json& b) { b = 4; })},
      {"'bits' is 7: expected 2, 3, 4, 5, 6 or 8", block([](json& b) { b["bits"] = 7; })},
      {"quantization: has no 'group_size'", block([](json& b) { b.erase("group_size"); })},
      {"'group_size' is 48", block([](json& b) { b["lm_head"]["group_size"] = 48; })},
      {"'mode' is \"mxfp4\"", block([](json& b) { b["mode"] = "mxfp4"; })},
      {"'model.norm' is 8", block([](json& b) { b["model.norm"] = 8; })},
      {"lm_head: is packed, but config.json's 'quantization' says false", block([](json& b) { b["lm_head"] = false; })},
      {"lm_head.weight: shape [256, 32], expected [256, 16]", block([](json& b) { b.erase("lm_head"); })},
      {"lm_head.weight: shape [256, 32], expected [256, 16]", block([](json& b) { b["lm_head"] = true; })},
      {"lm_head.scales: shape [256, 2], expected [256, 4]", block([](json& b) { b["lm_head"]["group_size"] = 32; })},
      {"lm_head.biases: missing",
       header([](json& h) { h["other"] = h.at("lm_head.biases"), h.erase("lm_head.biases"); })},
      {"lm_head.scales: dtype I16", header([](json& h) { h["lm_head.scales"]["dtype"] = "I16"; })},
      {"lm_head.weight: dtype I32, expected U32", header([](json& h) { h["lm_head.weight"]["dtype"] = "I32"; })},
  };
  CHECK_NOTHROW(Directory{fixtures::CheckpointCopy(*golden)}.find());
  for (const Case& c : cases) {
    CAPTURE(c.text);
    const Directory directory{fixtures::CheckpointCopy(*golden)};
    c.damage(directory.copy);
    CHECK_THROWS_WITH(directory.find(), ContainsSubstring(c.text));
  }
}

TEST_CASE("a scale that is no number is refused where it lies, and groups must divide a row") {
  const auto golden = fixtures::find_golden("mlx-affine");
  if (!golden) KALIBRI_SKIP("no golden data");
  const Vectors vectors(*golden, 3, 128);
  const Checkpoint whole = vectors.checkpoint();
  CHECK_THROWS_WITH(find_matrix(whole, "m.weight", kRows, 352),
                    ContainsSubstring("m.weight: is packed in groups of 128, which do not divide its 352 columns"));
  CHECK_THROWS_WITH(as_router(find_matrix(whole, "m.weight", kRows, kCols), {}), ContainsSubstring("a router never is"));
  const fixtures::CheckpointCopy copy(whole.directory());
  for (const std::size_t byte : {0U, 1U}) {  // row 5, group 1: a NaN
    copy.edit_byte("m.biases", 2 * (5 * 3 + 1) + byte, [](unsigned char) { return 0xff; });
  }
  const Checkpoint damaged(copy.directory());
  const StoredMatrix matrix = find_matrix(damaged, "m.weight", kRows, kCols);
  std::vector<float> row(kCols);
  CHECK_NOTHROW(decode_rows(matrix, 4, 1, row.data()));
  CHECK_THROWS_WITH(decode_rows(matrix, 5, 1, row.data()), ContainsSubstring("m.weight: row 5, columns 128 to 255"));
}

}  // namespace
}  // namespace kalibri::reference::test

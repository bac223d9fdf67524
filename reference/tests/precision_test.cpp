// The text of a precision, and the forms that it gives to weights.
#include "reference/precision.hpp"

#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"
#include "reference/number_formats.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;

std::string canonical(const char* text) { return precision_text(parse_precision(text)); }

TEST_CASE("a precision has one text, and a preset's value has the preset's name") {
  CHECK(precision_text({}) == "native");
  for (const char* preset : {"native", "exact", "mixed-4-8", "bf16", "production"}) CHECK(canonical(preset) == preset);
  CHECK(canonical("compute=f32,router=f32,dense=native") == "native");
  CHECK(canonical("head=f32,embed=f32,experts=f32,dense=f32") == "exact");
  CHECK(canonical("kv=bf16,activations=fp8-dynamic,residual=bf16-fused,compute=bf16-served") == "production");
  CHECK(canonical("kv=bf16,compute=bf16") == "compute=bf16,kv=bf16");
  CHECK(canonical("head=affine:8:64,experts=affine:3:128:gpu,residual=bf16") ==
        "residual=bf16,experts=affine:3:128:gpu,head=affine:8:64");
  CHECK(canonical("activations=fp8-dynamic") == "activations=fp8-dynamic");
  CHECK(canonical("activations=int8,dense=affine:8:64") == "dense=affine:8:64,activations=int8");
  const Precision p = parse_precision("production");
  CHECK(p.compute == Compute::bf16_served);
  CHECK(p.residual == Residual::bf16_fused);
  CHECK(p.activations == Activations::fp8_dynamic);
  CHECK(p.rounds_kv);
  CHECK(p.dense == WeightForm{});
}

TEST_CASE("a precision that does not exist is refused, and what is known is listed") {
  const auto check_refused = [](const char* text, const char* message) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_precision(text), Error);
    CHECK_THROWS_WITH(parse_precision(text), ContainsSubstring(message));
  };
  check_refused("", "a preset or KEY=VALUE");
  check_refused("fp16", "native, exact, mixed-4-8, bf16, production");
  check_refused("compute=f16", "f32, bf16, bf16-served");
  check_refused("compute", "f32, bf16, bf16-served");
  check_refused("dense=bf16,dense=bf16", "dense comes twice");
  check_refused("router=bf16", "'router=bf16': expected f32");
  check_refused("kv=f32,", "the keys compute, residual");
  for (const char* form : {"affine", "affine:7:64", "affine:4:48", "affine:4:64:cpu", "affine:4", "affine:4:64:gpu:x",
                           "affine:+4:64", "f16", ""}) {
    check_refused(("experts=" + std::string(form)).c_str(), "affine:BITS:GROUP[:gpu]");
  }
}

TEST_CASE("quantising gives MLX's codes and grid by both of its rules, bit by bit") {
  const auto golden = fixtures::find_golden("mlx-affine");
  if (!golden) KALIBRI_SKIP("no golden data");
  for (const std::int64_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const std::int64_t group_size : {32, 64, 128}) {
      CAPTURE(bits, group_size);
      const auto vectors = fixtures::read_safetensors(
          *golden / ("affine-b" + std::to_string(bits) + "-g" + std::to_string(group_size) + ".safetensors"));
      const std::vector<double> w = vectors.at("w").values();
      const std::vector<std::int64_t> golden_codes = vectors.at("codes").integers();
      std::vector<std::int64_t> codes;
      std::vector<double> scales, biases, unrounded_scales, unrounded_biases, gpu_scales, gpu_biases;
      std::vector<std::int64_t> gpu_codes;
      std::vector<float> group(static_cast<std::size_t>(group_size));
      std::vector<int> found(group.size());
      for (std::size_t begin = 0; begin < w.size(); begin += group.size()) {
        for (std::size_t i = 0; i < group.size(); ++i) group[i] = static_cast<float>(w[begin + i]);
        const AffineGrid grid = quantise_group(group, bits, AffineRule::cpu, found);
        codes.insert(codes.end(), found.begin(), found.end());
        unrounded_scales.push_back(static_cast<double>(grid.scale));
        unrounded_biases.push_back(static_cast<double>(grid.bias));
        scales.push_back(static_cast<double>(round_to_bf16(grid.scale)));
        biases.push_back(static_cast<double>(round_to_bf16(grid.bias)));
        const AffineGrid gpu = quantise_group(group, bits, AffineRule::gpu, found);
        gpu_codes.insert(gpu_codes.end(), found.begin(), found.end());
        gpu_scales.push_back(static_cast<double>(round_to_bf16(gpu.scale)));
        gpu_biases.push_back(static_cast<double>(round_to_bf16(gpu.bias)));
      }
      CHECK(codes == golden_codes);
      CHECK(unrounded_scales == vectors.at("scale_unrounded_f32").values());
      CHECK(unrounded_biases == vectors.at("bias_unrounded_f32").values());
      CHECK(scales == vectors.at("scales").values());
      CHECK(biases == vectors.at("biases").values());
      CHECK(gpu_scales == vectors.at("gpu_rule.scales").values());
      CHECK(gpu_biases == vectors.at("gpu_rule.biases").values());
      const std::vector<std::byte>& packed = vectors.at("gpu_rule.weight").bytes;
      bool gpu_codes_agree = true;
      const std::int64_t n_cols = 384;
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(gpu_codes.size()); ++k) {
        const auto row_bytes = static_cast<std::size_t>(n_cols * bits / 8);
        const auto row = std::span(packed).subspan(static_cast<std::size_t>(k / n_cols) * row_bytes, row_bytes);
        gpu_codes_agree &= affine_code(row, bits, k % n_cols) == gpu_codes[static_cast<std::size_t>(k)];
      }
      CHECK(gpu_codes_agree);
      CHECK(gpu_codes != codes);
    }
  }
}

TEST_CASE("a row in a form holds the numbers that the form can hold") {
  std::vector<float> row(64);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = 0.01F * static_cast<float>(i) - 0.2F;
  const auto in = [&](const WeightForm& form) {
    std::vector<float> converted = row;
    convert_row(form, converted);
    return converted;
  };
  const auto count_distinct = [](std::vector<float> values) {
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
  };
  const Precision p = parse_precision("dense=f32,experts=bf16,embed=affine:2:64,head=affine:4:128");
  CHECK(in({}) == row);
  CHECK(in(p.dense) == row);
  const std::vector<float> bf16 = in(p.experts);
  CHECK(bf16 != row);
  for (const float x : bf16) CHECK(round_to_bf16(x) == x);
  CHECK(count_distinct(in(p.embed)) == 4);
  CHECK(in(p.head) == bf16);  // groups of 128 do not divide 64 columns
  row[5] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH(in(p.embed), ContainsSubstring("is not finite"));
  CHECK_NOTHROW(in(p.experts));
}

}  // namespace
}  // namespace kalibri::reference::test

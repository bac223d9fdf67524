// Quantising on the fly is what the converter does: a precision text on the source and the converted directory give the
// same logits, bit for bit.
#include "engine/checkpoint/convert.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using test::LoadedModel;

namespace {

struct Conversion {
  std::string precision;
  checkpoint::ConvertOptions options;
};

checkpoint::ConvertOptions options(std::int64_t dense, std::int64_t experts, std::int64_t embed, std::int64_t head,
                                   std::int64_t group_size) {
  checkpoint::ConvertOptions o;
  o.dense_bits = dense;
  o.expert_bits = experts;
  o.embed_bits = embed;
  o.head_bits = head;
  o.group_size = group_size;
  return o;
}

std::vector<Conversion> conversions() {
  checkpoint::ConvertOptions gpu = options(6, 3, 5, 2, 32);
  gpu.rule = kernels::AffineRule::gpu;
  return {{"mixed-4-8", checkpoint::ConvertOptions::mixed()},
          {"dense=affine:6:32:gpu,experts=affine:3:32:gpu,embed=affine:5:32:gpu,head=affine:2:32:gpu", gpu},
          {"dense=bf16,experts=affine:4:32,embed=bf16,head=bf16", options(0, 4, 0, 0, 32)},
          {"dense=bf16,experts=bf16,embed=bf16,head=bf16", options(0, 0, 0, 0, 64)}};
}

std::vector<float> logits(const std::filesystem::path& directory, const char* precision) {
  const LoadedModel loaded(directory, precision);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 30; ++i) ids.push_back(i * i * 7 % 150);
  ThreadPool pool(2);
  return test::run_in_cuts(loaded.model, pool, ids, {17, 1}, 8);
}

}  // namespace

TEST_CASE("Quantising on the fly gives the converted directory's logits, bit for bit") {
  for (const std::string set :
       {"kolibri1-k1-fp8", "kolibri1-k2-fp8", "kolibri1-k2", "qwen4-exp-t1-fp8", "qwen4-exp-t2"}) {
    const auto source = fixtures::find_golden(set);
    if (!source) KALIBRI_SKIP("golden set " + set + " is not there");
    const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(*source);
    std::vector<std::vector<float>> all = {logits(*source, "native")};
    for (const auto& [precision, options] : conversions()) {
      INFO(set << ", " << precision);
      const fixtures::TempDirectory scratch;
      ThreadPool pool(2);
      checkpoint::convert(checkpoint, checkpoint::plan_conversion(checkpoint, options), scratch.path() / "out", pool,
                          [](std::int64_t) {});
      const std::vector<float> converted = logits(scratch.path() / "out", "native");
      CHECK((logits(*source, precision.c_str()) == converted));
      all.push_back(converted);
    }
    // Each of them is a precision of its own, so that none was ignored; a bf16 set is its own bf16 form.
    const bool is_bf16 = set == "kolibri1-k2";
    CHECK((all[4] == all[0]) == is_bf16);
    for (std::size_t a = 0; a < 4; ++a) {
      for (std::size_t b = a + 1; b < 4; ++b) CHECK((all[a] != all[b]));
    }
  }
}

TEST_CASE("Each key of a precision changes what it names, and one that names nothing changes nothing") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const std::vector<float> native = logits(*source, "native");
  for (const char* key : {"dense", "experts", "embed", "head"}) {
    INFO(key);
    CHECK((logits(*source, (std::string(key) + "=affine:4:64").c_str()) != native));
    CHECK((logits(*source, (std::string(key) + "=native").c_str()) == native));
  }
  CHECK((logits(*source, "embed=bf16,head=bf16") == native));  // they are bf16 in this set
  CHECK((logits(*source, "dense=f32,experts=f32") == logits(*source, "exact")));
}

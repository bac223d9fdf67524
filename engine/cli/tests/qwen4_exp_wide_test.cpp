// The released layer widths of qwen4_exp through `verify`, with few experts, a small budget and a short prompt, so that
// it takes a minute. All 512 experts, the released budget and 2,300 tokens take longer; by hand:
//   kalibri-fixtures qwen4_exp wide --preset wide
//   kalibri verify wide --tokens tokens.json --positions 0-7,2040-2060,2290-2299
#include <filesystem>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

}  // namespace

TEST_CASE("verify holds at the real width of qwen4_exp within 8 GiB a side, and a zeroed indexer moves the logits") {
  fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_wide();
  shape.n_experts = 16;
  shape.indexer_budget = 128;
  const fixtures::TempDirectory scratch;
  const auto wide = scratch.path() / "wide";
  fixtures::make_qwen4_exp(wide, shape, {});
  const auto tokens = scratch.path() / "tokens.json";
  const test::Tokens prompt{{"p", test::random_ids(300, shape.vocab_size)}};
  fixtures::write_file(tokens, nlohmann::json(prompt).dump());
  const std::string positions = "0-7,120-140,296-299";
  const auto out = scratch.path() / "out";
  const fixtures::RunResult run = test::kalibri_program(
      {"verify", wide, "--tokens", tokens, "--out", out, "--positions", positions, "--precision", "exact"});
  INFO(run.out << run.err);
  CHECK(run.exit_status == 0);
  for (const char* side : {"reference.h5", "engine.h5"}) {
    const dump::Reader dump(out / side);
    WARN(side << ": peak " << static_cast<double>(dump.peak_rss_bytes()) / static_cast<double>(kGiB) << " GiB, "
              << dump.wall_s() << " s");
    CHECK(dump.peak_rss_bytes() < 8 * kGiB);
  }

  const std::string indexer = "model.language_model.layers.3.self_attn.indexer.index_qk_proj.weight";
  const auto bytes = fixtures::read_safetensors_header(wide / "model.safetensors").at(indexer).n_bytes;
  fixtures::patch_tensor(wide / "model.safetensors", indexer, 0,
                         std::vector<std::byte>(static_cast<std::size_t>(bytes)));
  const auto zeroed = scratch.path() / "zeroed.h5";
  REQUIRE(test::run_side(test::Side::engine, wide, prompt, zeroed, {"--positions", positions, "--precision", "exact"})
              .exit_status == 0);
  const dump::Reader zero(zeroed);
  const dump::Reader real(out / "engine.h5");
  constexpr std::int64_t kDense = 8 + 11;  // rows of positions below 131, which see fewer than 132 tokens
  CHECK(zero.read_f64("p", "logits", 0, kDense) == real.read_f64("p", "logits", 0, kDense));
  const std::vector<double> a = zero.read_f64("p", "logits", kDense, 33 - kDense);
  const std::vector<double> b = real.read_f64("p", "logits", kDense, 33 - kDense);
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  WARN("a zeroed indexer moves logits by up to " << most);
  CHECK(most > 0.1);
}

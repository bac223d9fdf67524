// Where sparse attention begins to choose, on both sides: with fewer visible tokens than budget + block size every
// block is kept, so the indexer's weights cannot matter; from there on they must.
#include <algorithm>
#include <filesystem>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;

TEST_CASE("zeroing the indexer changes no bit below budget + r visible tokens, and the selection from there on") {
  constexpr std::int64_t kTokens = 40;
  const fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
  const fixtures::TempDirectory scratch;
  fixtures::make_qwen4_exp(scratch.path() / "made", shape, {});
  const fixtures::CheckpointCopy zeroed(scratch.path() / "made");
  const std::string indexer = "model.language_model.layers.3.self_attn.indexer.index_qk_proj.weight";
  const auto bytes = fixtures::read_safetensors_header(zeroed.weights()).at(indexer).n_bytes;
  fixtures::patch_tensor(zeroed.weights(), indexer, 0, std::vector<std::byte>(static_cast<std::size_t>(bytes)));

  for (const test::Side side : test::kSides) {
    INFO(test::name(side));
    const auto run = [&](const std::filesystem::path& checkpoint, const char* name) {
      const auto out = scratch.path() / (std::string(name) + test::name(side) + ".h5");
      const fixtures::RunResult result = test::run_side(
          side, checkpoint, {{"p", test::random_ids(kTokens, shape.vocab_size)}}, out, {"--taps", "selected_blocks"});
      INFO(result.err);
      REQUIRE(result.exit_status == 0);
      return dump::Reader(out);
    };
    const dump::Reader real = run(scratch.path() / "made", "real");
    const dump::Reader zero = run(zeroed.directory(), "zero");
    const std::int64_t first_choice = shape.indexer_budget + shape.block_size - 1;  // this position sees budget + r
    CHECK(real.read_f64("p", "logits", 0, first_choice) == zero.read_f64("p", "logits", 0, first_choice));
    CHECK(real.read_f64("p", "logits", first_choice, 1) != zero.read_f64("p", "logits", first_choice, 1));

    const char* const blocks = "layers/03/taps/selected_blocks";
    CHECK(real.read_i64("p", blocks, 0, first_choice) == zero.read_i64("p", blocks, 0, first_choice));
    const auto chosen = real.read_i64("p", blocks, first_choice, 1);
    CHECK(zero.read_i64("p", blocks, first_choice, 1) == std::vector<std::int64_t>{0, 1, 2, 3});  // ties: lower index
    CHECK(chosen != std::vector<std::int64_t>{0, 1, 2, 3});
    CHECK(chosen.size() == 4);
    CHECK(std::ranges::is_sorted(chosen));
    CHECK(chosen.back() == 4);  // the fifth block takes the place of another one
  }
}

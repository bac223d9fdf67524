// Memory is bounded by one layer and by blocks, whatever the number of experts, the file's size and the prompts'
// length.
#include <fmt/format.h>

#include <set>

#include "fixtures/catch.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "oracle/dump/names.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Token ids spread over the vocabulary.
std::vector<std::int64_t> spread_tokens(std::int64_t n, std::int64_t vocab_size, std::int64_t first) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < n; ++i) tokens.push_back((first + i * 7919) % vocab_size);
  return tokens;
}

TEST_CASE("an fp32 run of the real layer width stays far below 6 GiB, with nine experts in ten chosen") {
  const fixtures::TempDirectory folder;
  const fixtures::Kolibri1Shape shape = fixtures::kolibri1_wide();
  fixtures::make_kolibri1(folder.path() / "wide", shape, {});
  const Tokens prompts{{"de_short", spread_tokens(13, shape.vocab_size, 1)},
                       {"en_long", spread_tokens(618, shape.vocab_size, 2)},
                       {"de_long", spread_tokens(612, shape.vocab_size, 3)}};
  const std::filesystem::path out = folder.path() / "wide.h5";
  const fixtures::RunResult result = run_reference(folder.path() / "wide", prompts, out, {"--positions", "last:8"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);

  const dump::Reader dump(out);
  fmt::print("real layer width, f32: peak {:.2f} GiB, {:.0f} s\n",
             static_cast<double>(dump.peak_rss_bytes()) / static_cast<double>(kGiB), dump.wall_s());
  std::set<std::int64_t> chosen;
  for (const auto& [name, tokens] : prompts) {
    const auto ids =
        dump.read_i64(name, dump::layer_path(0, "expert_ids"), 0, static_cast<std::int64_t>(tokens.size()));
    chosen.insert(ids.begin(), ids.end());
  }
  CHECK(static_cast<std::int64_t>(chosen.size()) * 10 >= shape.n_experts * 9);
  // What must be there at once is the head in f32. The rest of the files (3 GB of experts among it) must not add up.
  const std::int64_t head_bytes = shape.vocab_size * shape.hidden_size * 4;
  CHECK(dump.peak_rss_bytes() > head_bytes);
  CHECK(dump.peak_rss_bytes() < head_bytes + kGiB);
  CHECK(dump.peak_rss_bytes() < 6 * kGiB);
}

TEST_CASE("neither the logits nor the attention scores of a long prompt are in memory at once") {
  const fixtures::TempDirectory folder;
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_tiny();
  shape.n_layers = 2;
  shape.hidden_size = 64;
  shape.n_heads = 48;
  shape.n_kv_heads = 4;
  shape.head_dim = 16;
  shape.vocab_size = 50000;
  shape.max_position_embeddings = 6000;
  fixtures::make_kolibri1(folder.path() / "long", shape, {.sparse = true});
  constexpr std::int64_t kTokens = 6000;
  const std::filesystem::path out = folder.path() / "long.h5";
  const fixtures::RunResult result =
      run_reference(folder.path() / "long", {{"long", spread_tokens(kTokens, shape.vocab_size, 1)}}, out);
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  const dump::Reader dump(out);
  CHECK(dump.find("long", "logits")->shape == std::vector{kTokens, shape.vocab_size});
  const std::int64_t logits_bytes = kTokens * shape.vocab_size * 4;
  const std::int64_t scores_bytes = shape.n_heads * kTokens * kTokens * 4;
  CHECK(dump.peak_rss_bytes() < logits_bytes * 3 / 4);
  CHECK(dump.peak_rss_bytes() < scores_bytes / 4);
}

}  // namespace
}  // namespace kalibri::reference::test

// The n-gram table is never in memory, on either side: of a table of the released size, in eight files that are all but
// holes, the right rows come back at once, and memory is that of a run with a small table.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using fixtures::Qwen4ExpShape;
using test::Side;

namespace {

constexpr std::int64_t kRowSize = 160;
constexpr std::int64_t kShards = 128;
constexpr std::int64_t kShardRows = 2500012;
constexpr std::int64_t kMostGrowth = std::int64_t{64} << 20;
constexpr int kFiles = 8;
const std::string kTable = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.";

/// Small layers around a table of 16 heads whose sizes begin at `base`; the released vocabulary, so that hashes are the
/// released ones.
Qwen4ExpShape shape_with_table(std::int64_t base) {
  Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
  shape.vocab_size = fixtures::qwen4_exp_released().vocab_size;
  shape.hidden_size = 32;
  shape.n_experts = 3;
  shape.ple_embed_dim = 16 * kRowSize;
  shape.heads_per_ngram = 8;
  shape.ngram_vocab_size_base = base;
  shape.ngram_divisor = 128;
  shape.n_table_shards = kShards;
  return shape;
}

/// The stored codes of row `row`: numbers of its own, none of them NaN.
std::vector<std::byte> row_codes(std::int64_t row) {
  std::vector<std::byte> codes;
  for (std::uint64_t j = 0; j < kRowSize; ++j) {
    codes.push_back(static_cast<std::byte>(fixtures::random_word(static_cast<std::uint64_t>(row), j) % 0x7E + 1));
  }
  return codes;
}

/// Writes each row where the released table has it, `shift` shards further on.
void write_rows(const std::filesystem::path& directory, const std::vector<std::int64_t>& rows, std::int64_t shift) {
  const nlohmann::json index = nlohmann::json::parse(fixtures::read_file(directory / "model.safetensors.index.json"));
  for (const std::int64_t row : rows) {
    const std::string shard = kTable + "shard_" + std::to_string((row / kShardRows + shift) % kShards) + ".weight";
    const auto file = directory / index.at("weight_map").at(shard).get<std::string>();
    fixtures::patch_tensor(file, shard, row % kShardRows * kRowSize, row_codes(row));
  }
}

struct Released {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> rows;  // [ids, 16]
};

std::optional<Released> released_rows() {
  const auto set = fixtures::find_golden("qwen4-exp-t2");
  if (!set) return std::nullopt;
  const auto json = nlohmann::json::parse(fixtures::read_file(*set / "ple_rows_released_constants.json"));
  Released released{json.at("input_ids"), {}};
  for (const auto& row : json.at("rows")) {
    for (const auto& id : row) released.rows.push_back(id);
  }
  return released;
}

/// Rows of a dump whose values are not those of row_codes.
std::int64_t n_wrong_rows(const dump::Reader& dump, const Released& released) {
  const auto n_tokens = static_cast<std::int64_t>(released.ids.size());
  const std::vector<double> values = dump.read_f64("p", "layers/01/taps/ngram_embedding", 0, n_tokens);
  REQUIRE(values.size() == released.rows.size() * kRowSize);
  std::int64_t n_wrong = 0;
  auto value = values.begin();
  for (const std::int64_t row : released.rows) {
    const std::vector<std::byte> codes = row_codes(row);
    n_wrong += std::equal(codes.begin(), codes.end(), value,
                          [](std::byte code, double v) {
                            return fixtures::f8_e4m3_value(std::to_integer<std::uint8_t>(code)) == v;  // the scale is 1
                          })
                   ? 0
                   : 1;
    value += kRowSize;
  }
  return n_wrong;
}

/// Makes the checkpoint with the table's scale set to 1. False when the file system has no room for such a file.
bool make_table(const std::filesystem::path& directory, std::int64_t base) {
  try {
    fixtures::make_qwen4_exp(directory, shape_with_table(base),
                             {.scale_dtype = "F32", .sparse_table = true, .n_shards = kFiles});
  } catch (const std::system_error&) {
    return false;
  }
  const float one = 1;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    if (!fixtures::read_safetensors_header(entry.path()).contains(kTable + "weight_scale")) continue;
    fixtures::patch_tensor(entry.path(), kTable + "weight_scale", 0, std::as_bytes(std::span(&one, 1)));
  }
  return true;
}

struct Sizes {
  std::int64_t n_apparent_bytes = 0;
  std::int64_t n_disk_bytes = 0;
};
Sizes sizes_of(const std::filesystem::path& directory) {
  Sizes sizes;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    struct stat status {};
    REQUIRE(::stat(entry.path().c_str(), &status) == 0);
    sizes.n_apparent_bytes += status.st_size;
    sizes.n_disk_bytes += std::int64_t{status.st_blocks} * 512;
  }
  return sizes;
}

/// Seconds until a prompt that the model's vocabulary does not hold is refused, which comes after loading; best of
/// three.
double seconds_to_load(Side side, const std::filesystem::path& checkpoint, const std::filesystem::path& scratch) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const fixtures::RunResult run = test::run_side(side, checkpoint, {{"p", {248320}}}, scratch / "refused.h5");
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    REQUIRE(run.exit_status == 2);
    REQUIRE_THAT(run.err, Catch::Matchers::ContainsSubstring("248320"));
  }
  return best;
}

}  // namespace

TEST_CASE("of an n-gram table of 51 GB the right rows come back, and it takes neither memory nor time to load") {
  const auto released = released_rows();
  if (!released) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const fixtures::TempDirectory scratch;
  const auto large = scratch.path() / "large";
  const auto shifted = scratch.path() / "shifted";
  const auto small = scratch.path() / "small";
  if (!make_table(large, 20000000) || !make_table(shifted, 20000000)) {
    KALIBRI_SKIP("the file system takes no file of 51 GB of holes");
  }
  REQUIRE(make_table(small, 1000));
  const Sizes sizes = sizes_of(large);
  if (sizes.n_disk_bytes > std::int64_t{1} << 30) KALIBRI_SKIP("the file system stores holes");
  CHECK(sizes.n_apparent_bytes > 51'200'000'000);
  write_rows(large, released->rows, 0);
  write_rows(shifted, released->rows, 1);

  for (const Side side : test::kSides) {
    INFO(test::name(side));
    const auto run = [&](const std::filesystem::path& checkpoint) {
      const auto out = scratch.path() / (checkpoint.filename().string() + test::name(side) + ".h5");
      const fixtures::RunResult result =
          test::run_side(side, checkpoint, {{"p", released->ids}}, out,
                         {"--taps", "ngram_rows,ngram_embedding", "--positions", "none"});
      INFO(result.err);
      REQUIRE(result.exit_status == 0);
      return dump::Reader(out);
    };
    const dump::Reader with_large = run(large);
    const auto n_tokens = static_cast<std::int64_t>(released->ids.size());
    CHECK(with_large.read_i64("p", "layers/01/taps/ngram_rows", 0, n_tokens) == released->rows);
    CHECK(n_wrong_rows(with_large, *released) == 0);
    CHECK(n_wrong_rows(run(shifted), *released) == static_cast<std::int64_t>(released->rows.size()));

    const std::int64_t growth = with_large.peak_rss_bytes() - run(small).peak_rss_bytes();
    const double seconds = seconds_to_load(side, large, scratch.path());
    const double seconds_small = seconds_to_load(side, small, scratch.path());
    WARN(test::name(side) << ": " << growth / 1024 << " KiB more than with a small table, peak "
                          << with_large.peak_rss_bytes() / 1024 << " KiB; refuses a prompt after " << seconds
                          << " s, with a small table after " << seconds_small << " s");
    CHECK(growth < kMostGrowth);
    CHECK(seconds - seconds_small < 1.0);
    if (side == Side::engine) CHECK(seconds < 1.0);  // the reference's includes loading LibTorch
  }
}

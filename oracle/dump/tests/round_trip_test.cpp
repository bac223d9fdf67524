// What the writer writes, the reader reads: every element type, values that are not finite, rows in any order, prompts
// in turn. And what the writer refuses.
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/tests/foreign_file.hpp"
#include "oracle/dump/writer.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using kalibri::dump::ElementType;
using kalibri::dump::Error;
using kalibri::dump::Header;
using kalibri::dump::layer_path;
using kalibri::dump::Reader;
using kalibri::dump::Writer;
using kalibri::fixtures::TempDirectory;

const Header kHeader{"kalibri", "0.1.0",  "kolibri1", 1,
                     "chained", "abc123", "exact",    R"({"threads": 2, "text": "Zürich"})"};
const std::vector<std::int32_t> kTokens = {5, 0, 7};

template <typename Value>
std::span<const Value> span_of(const std::vector<Value>& values) {
  return values;
}

std::vector<float> ramp(std::size_t n, float start) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = start + static_cast<float>(i) * 0.37f;
  return values;
}

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

}  // namespace

TEST_CASE("A dump's header, prompts and numbers come back as they were written") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  const std::vector<float> residual = ramp(3 * 4, 1);
  const std::vector<float> logits = ramp(2 * 6, -3);
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("de_short", kTokens, "00ff");
    writer.write_rows("embedding", 3, std::vector<std::int64_t>{4}, 0, span_of(residual));
    writer.write_rows(layer_path(0, "residual"), 3, std::vector<std::int64_t>{4}, 0, span_of(residual));
    writer.write_rows(layer_path(11, "expert_ids"), 3, std::vector<std::int64_t>{2}, 0,
                      span_of(std::vector<std::int32_t>{3, 1, 0, 2, 7, 5}));
    writer.write_rows(layer_path(11, "q"), 3, std::vector<std::int64_t>{8}, 0, span_of(ramp(24, 0)));
    writer.write_rows("positions", 2, {}, 0, span_of(std::vector<std::int32_t>{0, 2}));
    writer.write_rows("logits", 2, std::vector<std::int64_t>{6}, 0, span_of(logits));
    writer.write_rows("decode/tail/logits", 1, std::vector<std::int64_t>{6}, 0, span_of(ramp(6, 9)));
    writer.describe_schedule("tail", 2, 2);
    CHECK_FALSE(std::filesystem::exists(path));
    writer.finish(123456789, 1.5);
  }
  CHECK_FALSE(std::filesystem::exists(path.string() + ".partial"));

  const Reader reader(path);
  CHECK(reader.path() == path);
  CHECK(reader.header().producer == kHeader.producer);
  CHECK(reader.header().producer_version == kHeader.producer_version);
  CHECK(reader.header().model_type == kHeader.model_type);
  CHECK(reader.header().n_streams == 1);
  CHECK(reader.header().mode == kHeader.mode);
  CHECK(reader.header().checkpoint_fingerprint == kHeader.checkpoint_fingerprint);
  CHECK(reader.header().precision == kHeader.precision);
  CHECK(reader.header().options == kHeader.options);
  CHECK(reader.peak_rss_bytes() == 123456789);
  CHECK(reader.wall_s() == 1.5);
  CHECK(reader.unknown().empty());
  REQUIRE(reader.prompts().size() == 1);
  const kalibri::dump::PromptInfo& prompt = reader.prompts()[0];
  CHECK(prompt.name == "de_short");
  CHECK(prompt.text_sha256 == "00ff");
  CHECK(prompt.tokens == kTokens);
  CHECK(prompt.layers == std::vector<std::int64_t>{0, 11});
  CHECK(prompt.positions == std::vector<std::int64_t>{0, 2});
  REQUIRE(prompt.schedules.size() == 1);
  CHECK(prompt.schedules[0].name == "tail");
  CHECK(prompt.schedules[0].first_position == 2);
  CHECK(prompt.schedules[0].n_prefilled == 2);
  CHECK(prompt.schedules[0].n_rows == 1);
  CHECK(reader.find_prompt("de_short") == &prompt);
  CHECK(reader.find_prompt("en_short") == nullptr);

  const auto info = reader.find("de_short", layer_path(11, "q"));
  REQUIRE(info.has_value());
  CHECK(info->type == ElementType::f32);
  CHECK(info->shape == std::vector<std::int64_t>{3, 8});
  CHECK_FALSE(reader.find("de_short", "final_norm").has_value());
  CHECK(reader.read_f64("de_short", "layers/00/residual", 0, 3) == widened(residual));
  CHECK(reader.read_f64("de_short", "logits", 1, 1) == std::vector<double>(logits.begin() + 6, logits.end()));
  CHECK(reader.read_i64("de_short", "layers/11/expert_ids", 1, 2) == std::vector<std::int64_t>{0, 2, 7, 5});
  CHECK(reader.read_f64("de_short", "logits", 2, 0).empty());
  CHECK_THROWS_WITH(reader.read_f64("de_short", "logits", 1, 2),
                    ContainsSubstring("a.h5: /prompts/de_short/logits: rows [1, 1 + 2) asked for"));
  CHECK_THROWS_WITH(reader.read_f64("de_short", "final_norm", 0, 1), ContainsSubstring("no such dataset"));
  CHECK_THROWS_WITH(reader.read_i64("de_short", "logits", 0, 1), ContainsSubstring("holds floats, expected integers"));
}

TEST_CASE("Every bit of every element type survives: extremes, signed zeros, subnormals, infinities, NaN") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  using F = std::numeric_limits<float>;
  using D = std::numeric_limits<double>;
  const std::vector<float> f32 = {F::max(), F::lowest(), F::denorm_min(), -0.0f, F::infinity(), F::quiet_NaN()};
  const std::vector<double> f64 = {D::max(), 1.0 + D::epsilon(), D::denorm_min(), -0.0, -D::infinity(), D::quiet_NaN()};
  const std::vector<std::int32_t> i32 = {INT32_MIN, INT32_MAX, 0};
  const std::vector<std::int64_t> i64 = {INT64_MIN, INT64_MAX, -1};
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("p", kTokens, "");
    writer.write_rows("layers/00/taps/f32", 3, std::vector<std::int64_t>{2}, 0, span_of(f32));
    writer.write_rows("layers/00/taps/f64", 3, std::vector<std::int64_t>{2}, 0, span_of(f64));
    writer.write_rows("layers/00/taps/i32", 3, {}, 0, span_of(i32));
    writer.write_rows("layers/00/taps/i64", 3, {}, 0, span_of(i64));
    writer.finish(0, 0);
  }
  const Reader reader(path);
  const auto same_bits = [](const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  };
  CHECK(same_bits(reader.read_f64("p", "layers/00/taps/f32", 0, 3), widened(f32)));
  CHECK(same_bits(reader.read_f64("p", "layers/00/taps/f64", 0, 3), f64));
  CHECK(reader.read_i64("p", "layers/00/taps/i32", 0, 3) == std::vector<std::int64_t>(i32.begin(), i32.end()));
  CHECK(reader.read_i64("p", "layers/00/taps/i64", 0, 3) == i64);
  CHECK(reader.find("p", "layers/00/taps/f64")->type == ElementType::f64);
  CHECK(reader.find("p", "layers/00/taps/i64")->type == ElementType::i64);
  // Names that the format does not know are allowed, and listed.
  CHECK(reader.unknown() == std::vector<std::string>{"p/layers/00/taps/f32", "p/layers/00/taps/f64",
                                                     "p/layers/00/taps/i32", "p/layers/00/taps/i64"});
}

TEST_CASE("A tensor of many chunks may be written and read in blocks of any size and order, prompts in turn") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  const std::int64_t n_rows = 301;
  const std::int64_t width = 3000;  // 87 rows a chunk
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(n_rows), 1);
  const auto value = [](std::int64_t prompt, std::int64_t layer, std::int64_t row, std::int64_t column) {
    return static_cast<float>(prompt * 1'000'003 + layer * 100'003 + row * 977 + column);
  };
  const auto write_block = [&](Writer& writer, std::int64_t prompt, std::int64_t layer, std::int64_t first,
                               std::int64_t n) {
    std::vector<float> block;
    for (std::int64_t row = first; row < first + n; ++row) {
      for (std::int64_t column = 0; column < width; ++column) block.push_back(value(prompt, layer, row, column));
    }
    writer.write_rows(layer_path(layer, "residual"), n_rows, std::vector<std::int64_t>{width}, first, span_of(block));
  };
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("b", tokens, "");
    writer.begin_prompt("a", tokens, "");
    for (const std::int64_t layer : {0, 1}) {
      for (const std::int64_t prompt : {0, 1}) {
        writer.select_prompt(prompt == 0 ? "b" : "a");
        write_block(writer, prompt, layer, 200, 101);
        write_block(writer, prompt, layer, 0, 1);
        write_block(writer, prompt, layer, 1, 199);
      }
    }
    writer.finish(0, 0);
  }
  const Reader reader(path);
  REQUIRE(reader.prompts().size() == 2);
  CHECK(reader.prompts()[0].name == "b");  // as written, not by name
  CHECK(reader.prompts()[1].name == "a");
  for (const std::int64_t prompt : {0, 1}) {
    for (const std::int64_t layer : {0, 1}) {
      for (std::int64_t row = 0; row < n_rows; row += 50) {
        const std::int64_t n = std::min<std::int64_t>(50, n_rows - row);
        const auto block = reader.read_f64(prompt == 0 ? "b" : "a", layer_path(layer, "residual"), row, n);
        std::int64_t n_wrong = 0;
        for (std::int64_t i = 0; i < n * width; ++i) {
          if (block[static_cast<std::size_t>(i)] !=
              static_cast<double>(value(prompt, layer, row + i / width, i % width)))
            ++n_wrong;
        }
        CHECK(n_wrong == 0);
      }
    }
  }
}

TEST_CASE("Places of tokens on three axes come back as they were written") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  const std::vector<std::int32_t> ids = {0, 1, 1, 0, 1, 1, 0, 1, 2};  // an image of one row behind one token
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("p", kTokens, "");
    writer.write_rows("position_ids", 3, std::vector<std::int64_t>{3}, 0, span_of(ids));
    writer.finish(0, 0);
  }
  const Reader reader(path);
  CHECK(reader.find("p", "position_ids")->shape == std::vector<std::int64_t>{3, 3});
  CHECK(reader.read_i64("p", "position_ids", 0, 3) == std::vector<std::int64_t>(ids.begin(), ids.end()));
}

TEST_CASE("Writer and reader leave nothing open, however they end") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  const std::vector<float> row(8);
  const std::vector<std::int64_t> row_dims = {8};
  const auto n_before = kalibri::dump::test::n_open();
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("p", kTokens, "");
    writer.write_rows("logits", 3, row_dims, 0, span_of(row));
    CHECK(kalibri::dump::test::n_open() > n_before);
  }
  CHECK(kalibri::dump::test::n_open() == n_before);
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("p", kTokens, "");
    writer.write_rows("logits", 3, row_dims, 0, span_of(std::vector<float>(24)));
    writer.finish(0, 0);
    CHECK(kalibri::dump::test::n_open() == n_before);
  }
  {
    const Reader reader(path);
    CHECK(reader.read_f64("p", "logits", 0, 1).size() == 8);
    CHECK(kalibri::dump::test::n_open() > n_before);
  }
  CHECK(kalibri::dump::test::n_open() == n_before);
}

TEST_CASE("The same run written twice is the same file, byte for byte") {
  const TempDirectory folder;
  std::string bytes[2];
  for (std::string& content : bytes) {
    const auto path = folder.path() / "a.h5";
    Writer writer(path, kHeader);
    writer.begin_prompt("p", kTokens, "");
    writer.write_rows("logits", 3, std::vector<std::int64_t>{20'000}, 0, span_of(ramp(60'000, 1)));
    writer.finish(1, 1);
    std::ifstream file(path, std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(file), {});
  }
  CHECK(bytes[0].size() > 1000);
  CHECK(bytes[0] == bytes[1]);
}

TEST_CASE("A tensor with an axis of size zero is written, found and empty") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  {
    Writer writer(path, kHeader);
    writer.begin_prompt("p", kTokens, "");
    writer.write_rows("layers/00/taps/short_scores", 3, std::vector<std::int64_t>{0}, 0, std::span<const float>());
    writer.finish(0, 0);
  }
  const Reader reader(path);
  CHECK(reader.find("p", "layers/00/taps/short_scores")->shape == std::vector<std::int64_t>{3, 0});
  CHECK(reader.read_f64("p", "layers/00/taps/short_scores", 0, 3).empty());
}

TEST_CASE("Options may be longer than HDF5 keeps in one piece, and texts may be empty") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  Header header = kHeader;
  header.options = "{\"text\": \"" + std::string(200'000, 'x') + "\"}";
  header.precision = "";
  {
    Writer writer(path, header);
    writer.begin_prompt("p", kTokens, "");
    writer.finish(0, 0);
  }
  const Reader reader(path);
  CHECK(reader.header().options == header.options);
  CHECK(reader.header().precision.empty());
  header.options = "\xff";
  CHECK_THROWS_WITH(Writer(path, header), ContainsSubstring("attribute options: no valid UTF-8"));
}

TEST_CASE("The writer refuses prompts that are no prompts") {
  const TempDirectory folder;
  Writer writer(folder.path() / "a.h5", kHeader);
  writer.begin_prompt("p", kTokens, "");
  CHECK_THROWS_WITH(writer.begin_prompt("p", kTokens, ""), ContainsSubstring("two prompts have this name"));
  CHECK_THROWS_WITH(writer.begin_prompt("q", {}, ""), ContainsSubstring("no tokens"));
  for (const char* name :
       {"", "a/b", ".", "a\nb", "\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    CHECK_THROWS_AS(writer.begin_prompt(name, kTokens, ""), Error);
  }
  CHECK_NOTHROW(writer.begin_prompt("Zürich 🙂 ..", kTokens, ""));
}

TEST_CASE("The writer takes a caller's mistake for a fault of ours, and never calls such a file complete") {
  const TempDirectory folder;
  const auto path = folder.path() / "a.h5";
  const std::vector<std::int64_t> width = {2};
  {
    Writer writer(path, kHeader);
    const auto write = [&](const std::string& at, std::int64_t total, std::int64_t first, std::size_t n) {
      writer.write_rows(at, total, width, first, span_of(std::vector<float>(n)));
    };
    CHECK_THROWS_AS(write("logits", 3, 0, 6), std::logic_error);  // no prompt
    writer.begin_prompt("p", kTokens, "");
    write("logits", 3, 0, 2);
    CHECK_THROWS_AS(write("logits", 3, 0, 2), std::logic_error);   // twice
    CHECK_THROWS_AS(write("logits", 4, 1, 2), std::logic_error);   // another shape
    CHECK_THROWS_AS(write("logits", 3, 1, 3), std::logic_error);   // no whole rows
    CHECK_THROWS_AS(write("logits", 3, 2, 4), std::logic_error);   // beyond the end
    CHECK_THROWS_AS(write("logits", 3, -1, 2), std::logic_error);  // before the begin
    CHECK_THROWS_AS(writer.write_rows("logits", 3, width, 1, span_of(std::vector<double>(2))), std::logic_error);
    CHECK_THROWS_AS(write("layers/00/residual", 4, 0, 8), std::logic_error);    // rows are tokens
    CHECK_THROWS_AS(write("layers/00/expert_ids", 3, 0, 6), std::logic_error);  // floats for integers
    CHECK_THROWS_AS(write("layers/00/router_gap", 3, 0, 6), std::logic_error);  // one axis too many
    CHECK_THROWS_AS(write("layers//residual", 3, 0, 6), std::logic_error);
    CHECK_THROWS_AS(writer.select_prompt("q"), std::logic_error);
    CHECK_THROWS_AS(writer.finish(0, 0), std::logic_error);  // rows missing
  }
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(std::filesystem::exists(path.string() + ".partial"));
}

TEST_CASE("A layer's path has at least two digits, and taps lie in a folder of their own") {
  CHECK(layer_path(3, "residual") == "layers/03/residual");
  CHECK(layer_path(49, "router_logits") == "layers/49/router_logits");
  CHECK(layer_path(123, "q") == "layers/123/taps/q");
  CHECK(layer_path(0, "of_another_family") == "layers/00/taps/of_another_family");
  CHECK(kalibri::dump::find_tensor("layers/123/taps/q")->dims == "T,heads*D");
  CHECK(kalibri::dump::find_tensor("decode/tail/logits")->dims == "N,V");
  CHECK(kalibri::dump::find_tensor("tokens")->dims == "T");
  CHECK_FALSE(kalibri::dump::find_tensor("layers/03/q").has_value());
  CHECK_FALSE(kalibri::dump::find_tensor("layers/03/taps/residual").has_value());
  CHECK_FALSE(kalibri::dump::find_tensor("residual").has_value());
  CHECK_FALSE(kalibri::dump::find_tensor("decode/logits").has_value());
  CHECK_FALSE(kalibri::dump::find_tensor("").has_value());
}

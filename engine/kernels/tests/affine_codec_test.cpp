// The affine format against golden vectors made by MLX's rules: both quantisers, packing, dequantising, bit for bit;
// and for each way in which others get it wrong, that these vectors would show it.
#include "engine/kernels/affine_codec.hpp"

#include <functional>
#include <map>

#include "engine/kernels/codec.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "engine/kernels/tests/support.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"

namespace kalibri::kernels {
namespace {

using fixtures::StoredTensor;
using test::same_bits;

struct Combination {
  std::int64_t bits, group_size;
};
std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const std::int64_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const std::int64_t group_size : {32, 64, 128}) all.push_back({bits, group_size});
  }
  return all;
}

template <class T>
std::vector<T> elements(const StoredTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

std::vector<float> floats(const StoredTensor& tensor) {
  const std::vector<double> values = tensor.values();
  return {values.begin(), values.end()};
}

/// One golden file, and its matrix [24, 384] cut into groups.
struct Golden {
  Golden(const std::filesystem::path& directory, Combination c)
      : combination(c),
        tensors(fixtures::read_safetensors(
            directory / ("affine-b" + std::to_string(c.bits) + "-g" + std::to_string(c.group_size) + ".safetensors"))),
        w(floats(tensors.at("w"))) {}
  [[nodiscard]] const StoredTensor& at(const std::string& name) const { return tensors.at(name); }

  Combination combination;
  std::map<std::string, StoredTensor> tensors;
  std::vector<float> w;
};

constexpr std::int64_t kRows = 24;
constexpr std::int64_t kCols = 384;

/// What a quantiser makes of a whole matrix.
struct Quantised {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, biases;  // not rounded
};
using GroupQuantiser = std::function<AffineGrid(const float* w, std::int64_t n, std::int64_t bits, std::uint8_t*)>;

Quantised quantise(const Golden& golden, const GroupQuantiser& quantise_one) {
  const auto [bits, group_size] = golden.combination;
  Quantised result;
  result.codes.resize(golden.w.size());
  for (std::int64_t first = 0; first < kRows * kCols; first += group_size) {
    const AffineGrid grid = quantise_one(golden.w.data() + first, group_size, bits, result.codes.data() + first);
    result.scales.push_back(grid.scale);
    result.biases.push_back(grid.bias);
  }
  return result;
}
GroupQuantiser ours(AffineRule rule) {
  return [rule](const float* w, std::int64_t n, std::int64_t bits, std::uint8_t* codes) {
    return quantise_group(w, n, bits, rule, codes);
  };
}

std::vector<std::uint16_t> stored(const std::vector<float>& values) {
  std::vector<std::uint16_t> result;
  for (const float value : values) result.push_back(f32_to_bf16(value));
  return result;
}

std::vector<unsigned char> packed(const std::vector<std::uint8_t>& codes, std::int64_t bits) {
  std::vector<unsigned char> bytes(codes.size() * static_cast<std::size_t>(bits) / 8);
  pack_codes(codes.data(), static_cast<std::int64_t>(codes.size()), bits, bytes.data());
  return bytes;
}

double differing(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += static_cast<std::size_t>(a[i] != b[i]);
  return static_cast<double>(n) / static_cast<double>(a.size());
}

void check_all(const std::function<void(const Golden&)>& check) {
  const auto directory = fixtures::find_golden("mlx-affine");
  if (!directory) KALIBRI_SKIP("golden set mlx-affine is not there");
  for (const Combination c : combinations()) {
    INFO(c.bits << " bits, groups of " << c.group_size);
    check(Golden(*directory, c));
  }
}

TEST_CASE("the quantiser gives MLX's codes, scales, biases and packed words by both rules") {
  check_all([](const Golden& golden) {
    const std::int64_t bits = golden.combination.bits;
    const Quantised cpu = quantise(golden, ours(AffineRule::cpu));
    CHECK(cpu.codes == elements<std::uint8_t>(golden.at("codes")));
    CHECK(same_bits(cpu.scales, floats(golden.at("scale_unrounded_f32"))));
    CHECK(same_bits(cpu.biases, floats(golden.at("bias_unrounded_f32"))));
    CHECK(stored(cpu.scales) == elements<std::uint16_t>(golden.at("scales")));
    CHECK(stored(cpu.biases) == elements<std::uint16_t>(golden.at("biases")));
    CHECK(packed(cpu.codes, bits) == elements<unsigned char>(golden.at("weight")));

    const Quantised gpu = quantise(golden, ours(AffineRule::gpu));
    CHECK(stored(gpu.scales) == elements<std::uint16_t>(golden.at("gpu_rule.scales")));
    CHECK(stored(gpu.biases) == elements<std::uint16_t>(golden.at("gpu_rule.biases")));
    CHECK(packed(gpu.codes, bits) == elements<unsigned char>(golden.at("gpu_rule.weight")));
  });
}

TEST_CASE("packed codes come back, and decoded rows are the golden values") {
  check_all([](const Golden& golden) {
    const auto [bits, group_size] = golden.combination;
    const auto words = elements<unsigned char>(golden.at("weight"));
    std::vector<std::uint8_t> codes(golden.w.size());
    unpack_codes(words.data(), kRows * kCols, bits, codes.data());
    CHECK(codes == elements<std::uint8_t>(golden.at("codes")));

    MatrixView view{.format = Format::affine,
                    .n_rows = kRows,
                    .n_cols = kCols,
                    .data = words.data(),
                    .bits = static_cast<std::int32_t>(bits),
                    .group_size = static_cast<std::int32_t>(group_size),
                    .scales = golden.at("scales").bytes.data(),
                    .biases = golden.at("biases").bytes.data()};
    std::vector<float> decoded(golden.w.size());
    for (std::int64_t row = 0; row < kRows; ++row) decode_row(view, row, decoded.data() + row * kCols);
    CHECK(same_bits(decoded, floats(golden.at("dequantised_f32"))));

    const MatrixView last_rows = rows_of(view, 20, 4);
    std::vector<float> last(kCols);
    decode_row(last_rows, 3, last.data());
    CHECK(same_bits(last, std::vector<float>(decoded.end() - kCols, decoded.end())));
    std::swap(view.scales, view.biases);
    decode_row(view, 2, last.data());
    CHECK(!same_bits(last, std::vector<float>(decoded.begin() + 2 * kCols, decoded.begin() + 3 * kCols)));
  });
}

// The rule written out a second time, with a switch for each thing that others get wrong.
struct Traps {
  bool codes_from_stored_scale = false;
  bool bias_is_minimum = false;
  bool no_least_scale = false;
  bool bf16_intermediates = false;
  bool zero_off_grid = false;
  bool edge_not_strict = false;
};

GroupQuantiser written_out(Traps traps) {
  return [traps](const float* w, std::int64_t size, std::int64_t bits, std::uint8_t* codes) {
    const auto kept = [&](float x) { return traps.bf16_intermediates ? bf16_to_f32(f32_to_bf16(x)) : x; };
    const auto n = static_cast<float>((1 << bits) - 1);
    const float most = *std::max_element(w, w + size);
    const float least = *std::min_element(w, w + size);
    float s = kept(kept(most - least) / n);
    if (!traps.no_least_scale) s = std::max(s, 1e-7F);
    const bool from_below =
        traps.edge_not_strict ? std::fabs(least) >= std::fabs(most) : std::fabs(least) > std::fabs(most);
    float b = 0;
    if (traps.bias_is_minimum) {
      b = least;
    } else {
      s = from_below ? s : -s;
      const float edge = from_below ? least : most;
      const float q0 = std::nearbyint(edge / s);
      if (traps.zero_off_grid) {
        b = edge;
      } else if (q0 != 0) {
        s = kept(edge / q0);
        b = edge;
      }
    }
    const float code_scale = traps.codes_from_stored_scale ? bf16_to_f32(f32_to_bf16(s)) : s;
    for (std::int64_t i = 0; i < size; ++i) {
      const float code = std::nearbyint(kept((w[i] - b) / code_scale));
      codes[i] = static_cast<std::uint8_t>(code > 0 ? std::min(code, n) : 0);  // NaN too becomes 0
    }
    return AffineGrid{s, b};
  };
}

bool is_golden(const Quantised& q, const Golden& golden) {
  return q.codes == elements<std::uint8_t>(golden.at("codes")) &&
         stored(q.scales) == elements<std::uint16_t>(golden.at("scales")) &&
         stored(q.biases) == elements<std::uint16_t>(golden.at("biases"));
}

TEST_CASE("the golden matrices show each known mistake of an affine quantiser") {
  check_all([](const Golden& golden) {
    const std::int64_t bits = golden.combination.bits;
    CHECK(is_golden(quantise(golden, written_out({})), golden));  // so that each switch below is one change
    CHECK_FALSE(is_golden(quantise(golden, written_out({.bias_is_minimum = true})), golden));
    CHECK_FALSE(is_golden(quantise(golden, written_out({.no_least_scale = true})), golden));
    CHECK_FALSE(is_golden(quantise(golden, written_out({.bf16_intermediates = true})), golden));
    CHECK_FALSE(is_golden(quantise(golden, written_out({.zero_off_grid = true})), golden));
    CHECK_FALSE(is_golden(quantise(golden, written_out({.edge_not_strict = true})), golden));
    CHECK_FALSE(is_golden(quantise(golden, ours(AffineRule::gpu)), golden));
    // Two bits are too coarse for the scale's rounding to move a code; of eight bits it moves many.
    const Quantised late = quantise(golden, written_out({.codes_from_stored_scale = true}));
    const double moved = differing(late.codes, elements<std::uint8_t>(golden.at("codes")));
    CHECK((moved > 0) == (bits > 2));
    if (bits == 8) CHECK(moved > 0.05);
  });
}

TEST_CASE("the golden matrices show packing from the other end, or word by word") {
  check_all([](const Golden& golden) {
    const auto bits = static_cast<unsigned>(golden.combination.bits);
    const auto codes = elements<std::uint8_t>(golden.at("codes"));
    const auto words = elements<unsigned char>(golden.at("weight"));
    std::vector<unsigned char> most_significant_first(words.size());
    std::vector<unsigned char> by_words(words.size() + 4096);  // codes that do not cross a 32-bit word need more room
    for (std::size_t k = 0; k < codes.size(); ++k) {
      const std::size_t per_word = 32 / bits;
      for (unsigned bit = 0; bit < bits; ++bit) {
        if ((codes[k] >> bit & 1) == 0) continue;
        const std::size_t at = k * bits + (bits - 1 - bit);
        most_significant_first[at / 8] |= static_cast<unsigned char>(0x80U >> at % 8);
        const std::size_t in_word = k / per_word * 32 + k % per_word * bits + bit;
        by_words.resize(std::max(by_words.size(), in_word / 8 + 1));
        by_words[in_word / 8] |= static_cast<unsigned char>(1U << in_word % 8);
      }
    }
    CHECK((most_significant_first == words) == (bits == 8));  // whole bytes have no other end
    by_words.resize(words.size());
    CHECK((by_words == words) == (32 % bits == 0));
  });
}

TEST_CASE("a group's edge has code 0 and zero comes back, and constants, zeros and ties are what the rule says") {
  std::vector<float> w(32, 0.0F);
  std::uint8_t codes[32];
  for (const AffineRule rule : {AffineRule::cpu, AffineRule::gpu}) {
    const AffineGrid zero = quantise_group(w.data(), 32, 4, rule, codes);
    CHECK(zero.scale == -1e-7F);
    CHECK(zero.bias == 0);
    CHECK(std::all_of(codes, codes + 32, [](std::uint8_t code) { return code == 0; }));
  }
  w.assign(32, -0.75F);
  const AffineGrid constant = quantise_group(w.data(), 32, 4, AffineRule::cpu, codes);
  CHECK(constant.bias == -0.75F);
  CHECK(std::all_of(codes, codes + 32, [](std::uint8_t code) { return code == 0; }));
  CHECK(quantise_group(w.data(), 32, 4, AffineRule::gpu, codes).scale == 0.75F / 15);  // spans [-0.75, 0]

  // Range [-8, 7] at 4 bits: scale 1, bias -8; 0.5 and 1.5 are ties.
  for (std::size_t i = 0; i < 16; ++i) w[i] = static_cast<float>(i) - 8;
  w[16] = 0.5F;
  w[17] = 1.5F;
  std::fill(w.begin() + 18, w.end(), 0.0F);
  const AffineGrid grid = quantise_group(w.data(), 32, 4, AffineRule::cpu, codes);
  CHECK((grid.scale == 1 && grid.bias == -8 && codes[0] == 0 && codes[15] == 15 && codes[18] == 8));
  CHECK((codes[16] == 8 && codes[17] == 10));
  quantise_group(w.data(), 32, 4, AffineRule::gpu, codes);
  CHECK((codes[16] == 9 && codes[17] == 10));
}

TEST_CASE("only MLX's numbers of bits and sizes of groups are affine formats") {
  std::vector<int> bits, groups;
  for (int n = -1; n <= 300; ++n) {
    if (is_affine_bits(n)) bits.push_back(n);
    if (is_affine_group(n)) groups.push_back(n);
  }
  CHECK(bits == std::vector<int>{2, 3, 4, 5, 6, 8});
  CHECK(groups == std::vector<int>{32, 64, 128});
}

}  // namespace
}  // namespace kalibri::kernels

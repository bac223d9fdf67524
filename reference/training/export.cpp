#include "reference/training/export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "reference/error.hpp"
#include "reference/number_formats.hpp"
#include "reference/safetensors_writer.hpp"

namespace kalibri::reference::training {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr float kLargest = 448;  // of e4m3fn

std::uint16_t to_bf16(float x) {  // to the nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// The code whose value is nearest, ties to the even code, beyond 448 saturating.
std::uint8_t to_e4m3(float x) {
  static const std::array<float, 127> kValues = [] {
    std::array<float, 127> values{};
    for (std::size_t code = 0; code < values.size(); ++code)
      values[code] = decode_e4m3(static_cast<std::uint8_t>(code));
    return values;
  }();
  const float magnitude = std::fabs(x);
  auto code = static_cast<std::size_t>(std::ranges::lower_bound(kValues, magnitude) - kValues.begin());
  code = std::min(code, kValues.size() - 1);
  if (code > 0) {
    const float middle = (kValues[code - 1] + kValues[code]) / 2;
    if (magnitude < middle || (magnitude == middle && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80U : 0U));
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A scale as it will be read: f32, or rounded to bf16.
float stored_scale(float largest, const std::string& dtype) {
  const float scale = largest == 0 ? 1 : largest / kLargest;
  return dtype == "F32" ? scale : decode_bf16(to_bf16(scale));
}

void append_scale(std::string& bytes, float scale, const std::string& dtype) {
  if (dtype == "F32") {
    append(bytes, scale);
  } else {
    append(bytes, to_bf16(scale));
  }
}

class Exporter {
 public:
  Exporter(const Layout& layout, bool exact) : layout_(layout), exact_(exact) {}

  /// One tensor as its format says, with its scales behind it.
  void add(const std::string& name, std::vector<std::int64_t> shape, std::span<const float> values, Format format) {
    if (exact_) return add_plain(name, std::move(shape), "F32", values);
    switch (format) {
      case Format::bf16:
        return add_plain(name, std::move(shape), "BF16", values);
      case Format::fp8:
        return add_blocks(name, shape[0], shape[1], values);
      case Format::fp8_one_scale:
        return add_shards(name, shape[0], shape[1], values);
    }
  }

  void add_constants() {
    for (const auto& [name, numbers] : layout_.constants) {
      StoredTensor out{name, "I64", {static_cast<std::int64_t>(numbers.size())}, {}};
      for (const std::int64_t number : numbers) append(out.bytes, number);
      tensors.push_back(std::move(out));
    }
  }

  std::vector<StoredTensor> tensors;

 private:
  void add_plain(const std::string& name, std::vector<std::int64_t> shape, const char* dtype,
                 std::span<const float> values) {
    StoredTensor out{name, dtype, std::move(shape), {}};
    for (const float value : values) {
      if (exact_) {
        append(out.bytes, value);
      } else {
        append(out.bytes, to_bf16(value));
      }
    }
    tensors.push_back(std::move(out));
  }

  void add_blocks(const std::string& name, std::int64_t n_rows, std::int64_t n_cols, std::span<const float> values) {
    const std::int64_t blocks_down = (n_rows + kBlock - 1) / kBlock;
    const std::int64_t blocks_across = (n_cols + kBlock - 1) / kBlock;
    StoredTensor codes{name, "F8_E4M3", {n_rows, n_cols}, std::string(values.size(), '\0')};
    StoredTensor scales{name + "_scale_inv", layout_.scale_dtype, {blocks_down, blocks_across}, {}};
    for (std::int64_t down = 0; down < blocks_down; ++down) {
      for (std::int64_t across = 0; across < blocks_across; ++across) {
        const auto for_each = [&](auto body) {
          for (std::int64_t i = down * kBlock; i < std::min(n_rows, (down + 1) * kBlock); ++i) {
            for (std::int64_t j = across * kBlock; j < std::min(n_cols, (across + 1) * kBlock); ++j) {
              body(static_cast<std::size_t>(i * n_cols + j));
            }
          }
        };
        float largest = 0;
        for_each([&](std::size_t i) { largest = std::max(largest, std::fabs(values[i])); });
        const float scale = stored_scale(largest, layout_.scale_dtype);
        for_each([&](std::size_t i) { codes.bytes[i] = static_cast<char>(to_e4m3(values[i] / scale)); });
        append_scale(scales.bytes, scale, layout_.scale_dtype);
      }
    }
    tensors.push_back(std::move(codes));
    tensors.push_back(std::move(scales));
  }

  /// "….weight" becomes "….shard_0.weight", …, and one "….weight_scale".
  void add_shards(const std::string& name, std::int64_t n_rows, std::int64_t n_cols, std::span<const float> values) {
    const std::string stem = name.substr(0, name.size() - std::string("weight").size());
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    const float scale = stored_scale(largest, layout_.scale_dtype);
    const std::int64_t shard_rows = n_rows / layout_.n_table_shards;
    for (std::int64_t shard = 0; shard < layout_.n_table_shards; ++shard) {
      StoredTensor codes{fmt::format("{}shard_{}.weight", stem, shard), "F8_E4M3", {shard_rows, n_cols}, {}};
      const auto n = static_cast<std::size_t>(shard_rows * n_cols);
      for (const float value : values.subspan(static_cast<std::size_t>(shard) * n, n))
        codes.bytes += static_cast<char>(to_e4m3(value / scale));
      tensors.push_back(std::move(codes));
    }
    StoredTensor one{stem + "weight_scale", layout_.scale_dtype, {1}, {}};
    append_scale(one.bytes, scale, layout_.scale_dtype);
    tensors.push_back(std::move(one));
  }

  const Layout& layout_;
  bool exact_;
};

/// A stack of all experts' matrices as each expert's own: gate and up apart.
void add_experts(Exporter& exporter, const Parameter& p, std::span<const float> values, Format format) {
  const std::string prefix = p.name.substr(0, p.name.rfind('.') + 1);
  const bool is_both = p.name.ends_with("gate_up_proj");
  const std::int64_t n_rows = is_both ? p.shape[1] / 2 : p.shape[1];
  const auto n = static_cast<std::size_t>(n_rows * p.shape[2]);
  std::size_t place = 0;
  for (std::int64_t e = 0; e < p.shape[0]; ++e) {
    for (const char* name :
         is_both ? std::vector<const char*>{"gate_proj", "up_proj"} : std::vector<const char*>{"down_proj"}) {
      exporter.add(fmt::format("{}{}.{}.weight", prefix, e, name), {n_rows, p.shape[2]}, values.subspan(place, n),
                   format);
      place += n;
    }
  }
}

}  // namespace

void export_checkpoint(const Layout& layout, std::span<const float> values, const std::filesystem::path& tokenizer,
                       const std::filesystem::path& directory, bool exact) {
  std::filesystem::create_directories(directory);
  if (!std::filesystem::is_empty(directory))
    throw Error(fmt::format("{}: is not empty: name a new folder", directory.string()));
  Exporter exporter(layout, exact);
  for (const Parameter& p : layout.table.parameters) {
    const auto own = values.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.n_elements));
    if (p.name.find(".experts.") != std::string::npos) {
      add_experts(exporter, p, own, layout.format(p));
    } else {
      exporter.add(p.name, p.shape, own, layout.format(p));
    }
  }
  exporter.add_constants();
  write_text(directory / "model.safetensors", safetensors_text(exporter.tensors));
  write_text(directory / "generation_config.json", layout.generation_config_json);
  if (!tokenizer.empty()) std::filesystem::copy_file(tokenizer, directory / "tokenizer.json");
  write_text(directory / "config.json", layout.config_json);
}

}  // namespace kalibri::reference::training

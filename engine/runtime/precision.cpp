#include "engine/runtime/precision.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <type_traits>
#include <vector>

#include "engine/base/check.hpp"
#include "engine/base/error.hpp"

namespace kalibri::runtime {

namespace {

using Kind = WeightForm::Kind;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(
      ErrorCode::usage,
      "--precision: '" + std::string(text) + "' " + why +
          "; use exact, native, bf16, production, mixed-4-8, or KEY=VALUE,...: dense, experts, embed, head = "
          "native, f32, bf16, affine:BITS:GROUP[:gpu] (BITS 2, 3, 4, 5, 6 or 8; GROUP 32, 64 or 128); compute = "
          "f32, bf16, bf16-served; residual = f32, bf16, bf16-fused; activations = f32, fp8-dynamic, int16, "
          "int8; kv = f32, bf16; router = f32");
}

constexpr WeightForm affine(std::int64_t bits, std::int64_t group_size) {
  return {Kind::affine, {bits, group_size, kernels::AffineRule::cpu}};
}

struct Preset {
  std::string_view name;
  Precision precision;
};
constexpr WeightForm kF32 = {Kind::f32};
constexpr WeightForm kBf16 = {Kind::bf16};
constexpr std::array<Preset, 5> kPresets = {{
    {"exact", {kF32, kF32, kF32, kF32}},
    {"native", {}},
    {"bf16",
     {kBf16,
      kBf16,
      kBf16,
      kBf16,
      {Arithmetic::Compute::bf16, Arithmetic::Residual::bf16, Arithmetic::Activations::f32, Arithmetic::Kv::bf16}}},
    {"production",
     {{},
      {},
      {},
      {},
      {Arithmetic::Compute::bf16_served, Arithmetic::Residual::bf16_fused, Arithmetic::Activations::fp8_dynamic,
       Arithmetic::Kv::bf16}}},
    {"mixed-4-8", {affine(8, 64), affine(4, 64), affine(8, 64), affine(8, 64)}},
}};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at != text.npos;) {
    const std::size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    at = end == text.npos ? end : end + 1;
  }
  return parts;
}

/// -1 where it is no number.
std::int64_t number(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() ? value : -1;
}

WeightForm parse_form(std::string_view text, std::string_view whole) {
  if (text == "native") return {Kind::native};
  if (text == "f32") return {Kind::f32};
  if (text == "bf16") return {Kind::bf16};
  const std::vector<std::string_view> parts = split(text, ':');
  const bool is_gpu = parts.size() == 4 && parts[3] == "gpu";
  if (parts[0] != "affine" || (parts.size() != 3 && !is_gpu)) {
    refuse(whole, "has the form '" + std::string(text) + "', which is not known");
  }
  WeightForm form = affine(number(parts[1]), number(parts[2]));
  if (!kernels::is_affine_bits(form.affine.bits) || !kernels::is_affine_group(form.affine.group_size)) {
    refuse(whole, "has the form '" + std::string(text) + "', which is no affine format");
  }
  if (is_gpu) form.affine.rule = kernels::AffineRule::gpu;
  return form;
}

std::string form_text(const WeightForm& form) {
  switch (form.kind) {
    case Kind::native:
      return "native";
    case Kind::f32:
      return "f32";
    case Kind::bf16:
      return "bf16";
    case Kind::affine:
      return "affine:" + std::to_string(form.affine.bits) + ":" + std::to_string(form.affine.group_size) +
             (form.affine.rule == kernels::AffineRule::gpu ? ":gpu" : "");
  }
  return {};
}

/// An enumeration by its values' names, the first of which is the default.
template <class Enum, std::size_t n>
Enum parse_name(const std::array<std::string_view, n>& names, std::string_view value, std::string_view whole) {
  const auto found = std::find(names.begin(), names.end(), value);
  if (found == names.end()) {
    refuse(whole, "has the value '" + std::string(value) + "', which is not known");
  }
  return static_cast<Enum>(found - names.begin());
}

/// A key of the text: `set` takes a value, `get` gives it back, empty where it is the default.
struct Key {
  std::string_view name;
  void (*set)(Precision&, std::string_view value, std::string_view whole);
  std::string (*get)(const Precision&);
};

template <WeightForm Precision::*form>
constexpr Key form_key(std::string_view name) {
  return {name,
          [](Precision& p, std::string_view value, std::string_view whole) { p.*form = parse_form(value, whole); },
          [](const Precision& p) { return (p.*form).kind == Kind::native ? std::string() : form_text(p.*form); }};
}

constexpr std::array<std::string_view, 3> kComputeNames = {"f32", "bf16", "bf16-served"};
constexpr std::array<std::string_view, 3> kResidualNames = {"f32", "bf16", "bf16-fused"};
constexpr std::array<std::string_view, 4> kActivationNames = {"f32", "fp8-dynamic", "int16", "int8"};
constexpr std::array<std::string_view, 2> kKvNames = {"f32", "bf16"};
constexpr std::array<std::string_view, 1> kRouterNames = {"f32"};

template <const auto& names, auto Arithmetic::*field>
constexpr Key arithmetic_key(std::string_view name) {
  return {name,
          [](Precision& p, std::string_view value, std::string_view whole) {
            using Enum = std::remove_reference_t<decltype(p.arithmetic.*field)>;
            p.arithmetic.*field = parse_name<Enum>(names, value, whole);
          },
          [](const Precision& p) {
            const auto index = static_cast<std::size_t>(p.arithmetic.*field);
            return index == 0 ? std::string() : std::string(names[index]);
          }};
}

/// In canonical order. The router's logits are f32 in every run: its key says so and no more.
constexpr std::array<Key, 9> kKeys = {{
    arithmetic_key<kComputeNames, &Arithmetic::compute>("compute"),
    arithmetic_key<kResidualNames, &Arithmetic::residual>("residual"),
    form_key<&Precision::dense>("dense"),
    form_key<&Precision::experts>("experts"),
    form_key<&Precision::embed>("embed"),
    form_key<&Precision::head>("head"),
    arithmetic_key<kActivationNames, &Arithmetic::activations>("activations"),
    arithmetic_key<kKvNames, &Arithmetic::kv>("kv"),
    {"router",
     [](Precision&, std::string_view value, std::string_view whole) {
       parse_name<std::size_t>(kRouterNames, value, whole);
     },
     [](const Precision&) { return std::string(); }},
}};

}  // namespace

const WeightForm& Precision::of(checkpoint::WeightClass weights) const {
  switch (weights) {
    case checkpoint::WeightClass::dense:
      return dense;
    case checkpoint::WeightClass::experts:
      return experts;
    case checkpoint::WeightClass::embed:
      return embed;
    case checkpoint::WeightClass::head:
      return head;
    case checkpoint::WeightClass::none:
      break;
  }
  throw InternalError(__FILE__, __LINE__, "a weight of no class has no form of its own");
}

Precision Precision::parse(std::string_view text) {
  for (const Preset& preset : kPresets) {
    if (text == preset.name) return preset.precision;
  }
  Precision precision;
  std::array<bool, kKeys.size()> is_given = {};
  for (const std::string_view part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    std::size_t key = 0;
    while (key < kKeys.size() && part.substr(0, equals) != kKeys[key].name) ++key;
    if (equals == part.npos || key == kKeys.size()) {
      refuse(text, part == text ? "is not known" : "has '" + std::string(part) + "', which is not known");
    }
    if (is_given[key]) refuse(text, "gives " + std::string(kKeys[key].name) + " twice");
    is_given[key] = true;
    kKeys[key].set(precision, part.substr(equals + 1), text);
  }
  return precision;
}

std::string Precision::text() const {
  for (const Preset& preset : kPresets) {
    if (*this == preset.precision) return std::string(preset.name);
  }
  std::string text;
  for (const Key& key : kKeys) {
    const std::string value = key.get(*this);
    if (!value.empty()) text += (text.empty() ? "" : ",") + std::string(key.name) + "=" + value;
  }
  return text;
}

}  // namespace kalibri::runtime

#include "reference/precision.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

using Names = std::vector<std::string_view>;

// The names of an enumeration's values, in its order.
const Names kComputes = {"f32", "bf16", "bf16-served"};
const Names kResiduals = {"f32", "bf16", "bf16-fused"};
const Names kActivations = {"f32", "fp8-dynamic", "int16", "int8"};
const Names kKv = {"f32", "bf16"};
const Names kRouter = {"f32"};
const Names kPlainForms = {"native", "f32", "bf16"};

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kPresets = {{
    {"native", ""},
    {"exact", "dense=f32,experts=f32,embed=f32,head=f32"},
    {"mixed-4-8", "dense=affine:8:64,experts=affine:4:64,embed=affine:8:64,head=affine:8:64"},
    {"bf16", "compute=bf16,residual=bf16,dense=bf16,experts=bf16,embed=bf16,head=bf16,kv=bf16"},
    {"production", "compute=bf16-served,residual=bf16-fused,activations=fp8-dynamic,kv=bf16"},
}};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

[[noreturn]] void refuse(std::string_view text, const std::string& expected) {
  throw Error(fmt::format("--precision: '{}': expected {}", text, expected));
}

std::size_t find_name(const Names& names, std::string_view part, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) refuse(part, fmt::format("{}", fmt::join(names, ", ")));
  return static_cast<std::size_t>(found - names.begin());
}

std::int64_t parse_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() ? number : -1;
}

WeightForm parse_form(std::string_view part, std::string_view value) {
  const std::vector<std::string_view> words = split(value, ':');
  if (const auto plain = std::ranges::find(kPlainForms, value); plain != kPlainForms.end()) {
    return {static_cast<WeightForm::Kind>(plain - kPlainForms.begin()), {}, {}};
  }
  const bool is_affine = (words.size() == 3 || (words.size() == 4 && words[3] == "gpu")) && words[0] == "affine";
  const AffineFormat format = is_affine ? AffineFormat{parse_number(words[1]), parse_number(words[2])} : AffineFormat{};
  if (!exists(format)) {
    refuse(part, "native, f32, bf16 or affine:BITS:GROUP[:gpu] with 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64, 128");
  }
  return {WeightForm::Kind::affine, format, words.size() == 4 ? AffineRule::gpu : AffineRule::cpu};
}

std::string form_text(const WeightForm& form) {
  if (form.kind != WeightForm::Kind::affine) return std::string(kPlainForms[static_cast<std::size_t>(form.kind)]);
  return fmt::format("affine:{}:{}{}", form.affine.bits, form.affine.group_size,
                     form.rule == AffineRule::gpu ? ":gpu" : "");
}

Precision parse_keys(std::string_view text) {
  Precision p;
  std::set<std::string_view> seen;
  for (const std::string_view part : text.empty() ? std::vector<std::string_view>{} : split(text, ',')) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = part.substr(std::min(equals + 1, part.size()));
    if (!seen.insert(key).second) refuse(text, fmt::format("each key once, but {} comes twice", key));
    if (key == "compute") {
      p.compute = static_cast<Compute>(find_name(kComputes, part, value));
    } else if (key == "residual") {
      p.residual = static_cast<Residual>(find_name(kResiduals, part, value));
    } else if (key == "dense") {
      p.dense = parse_form(part, value);
    } else if (key == "experts") {
      p.experts = parse_form(part, value);
    } else if (key == "embed") {
      p.embed = parse_form(part, value);
    } else if (key == "head") {
      p.head = parse_form(part, value);
    } else if (key == "activations") {
      p.activations = static_cast<Activations>(find_name(kActivations, part, value));
    } else if (key == "kv") {
      p.rounds_kv = find_name(kKv, part, value) == 1;
    } else if (key == "router") {
      find_name(kRouter, part, value);
    } else {
      refuse(part,
             "native, exact, mixed-4-8, bf16, production, or KEY=VALUE,... with the keys compute, residual, dense, "
             "experts, embed, head, activations, kv and router");
    }
  }
  return p;
}

}  // namespace

Precision parse_precision(std::string_view text) {
  if (text.empty()) refuse(text, "a preset or KEY=VALUE,...");
  const auto preset = std::ranges::find(kPresets, text, [](const auto& entry) { return entry.first; });
  return parse_keys(preset == kPresets.end() ? text : preset->second);
}

std::string precision_text(const Precision& p) {
  for (const auto& [name, keys] : kPresets) {
    if (parse_keys(keys) == p) return std::string(name);
  }
  std::vector<std::string> parts;
  const auto add = [&](std::string_view key, std::string_view value, std::string_view otherwise) {
    if (value != otherwise) parts.push_back(fmt::format("{}={}", key, value));
  };
  add("compute", kComputes[static_cast<std::size_t>(p.compute)], "f32");
  add("residual", kResiduals[static_cast<std::size_t>(p.residual)], "f32");
  add("dense", form_text(p.dense), "native");
  add("experts", form_text(p.experts), "native");
  add("embed", form_text(p.embed), "native");
  add("head", form_text(p.head), "native");
  add("activations", kActivations[static_cast<std::size_t>(p.activations)], "f32");
  add("kv", kKv[p.rounds_kv ? 1 : 0], "f32");
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace kalibri::reference

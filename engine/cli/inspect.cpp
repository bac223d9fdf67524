#include "engine/cli/inspect.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/inventory.hpp"

namespace kalibri::cli {

namespace {

using checkpoint::Checkpoint;
using checkpoint::Inventory;
using checkpoint::KindSum;

constexpr std::size_t kMaxListed = 20;  // lines of one list in the text; the JSON has them all

/// 78103074560 -> "78,103,074,560".
std::string grouped(std::int64_t n) {
  const std::string digits = fmt::format("{}", n);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string plural(std::size_t n, std::string_view thing) {
  return fmt::format("{} {}{}", grouped(static_cast<std::int64_t>(n)), thing, n == 1 ? "" : "s");
}

std::vector<std::string> dtype_names(const KindSum& sum) {
  std::vector<std::string> names;
  for (const checkpoint::Dtype dtype : sum.dtypes) names.emplace_back(checkpoint::dtype_name(dtype));
  return names;
}

KindSum total(const Inventory& inventory) {
  KindSum sum;
  for (const auto& [kind, part] : inventory.kinds) {
    sum.n_tensors += part.n_tensors;
    sum.n_elements += part.n_elements;
    sum.n_bytes += part.n_bytes;
  }
  return sum;
}

std::string sum_text(const std::string& prefix, const KindSum& sum) {
  return fmt::format("{}*: {}, {} bytes", prefix, plural(static_cast<std::size_t>(sum.n_tensors), "tensor"),
                     grouped(sum.n_bytes));
}

nlohmann::ordered_json to_json(const KindSum& sum) {
  return {{"n_tensors", sum.n_tensors},
          {"n_elements", sum.n_elements},
          {"n_bytes", sum.n_bytes},
          {"dtypes", dtype_names(sum)}};
}

nlohmann::ordered_json to_json(const Checkpoint& checkpoint, const Inventory& inventory,
                               const InspectOptions& options) {
  using nlohmann::ordered_json;
  ordered_json json = {
      {"directory", options.directory.string()},
      {"model_type", inventory.model_type},
      {"summary", inventory.summary},
      {"whole", inventory.problems.empty()},
      {"n_parameters", inventory.n_parameters()},
      {"n_tensors", total(inventory).n_tensors},
      {"n_bytes", total(inventory).n_bytes},
      {"fingerprint", checkpoint::fingerprint(checkpoint, options.full_fingerprint)},
      {"full_fingerprint", options.full_fingerprint},
      {"values_checked", options.full_fingerprint},
      {"kinds", ordered_json::object()},
      {"shards", ordered_json::array()},
      {"left_alone", ordered_json::object()},
      {"problems", ordered_json::array()},
      {"unexpected", inventory.unexpected},
      {"notes", inventory.notes},
  };
  for (const auto& [kind, sum] : inventory.kinds) {
    json["kinds"][std::string(checkpoint::tensor_kind_name(kind))] = to_json(sum);
  }
  for (const auto& [prefix, sum] : inventory.left_alone) json["left_alone"][prefix] = to_json(sum);
  for (const checkpoint::SafetensorsFile& shard : checkpoint.shards()) {
    json["shards"].push_back({{"file", shard.path().filename().string()},
                              {"n_bytes", shard.bytes().size()},
                              {"n_tensors", shard.tensors().size()}});
  }
  for (const checkpoint::Problem& problem : inventory.problems) {
    json["problems"].push_back({{"file", problem.file}, {"tensor", problem.tensor}, {"text", problem.text}});
  }
  return json;
}

void print_list(std::ostream& out, std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  fmt::print(out, "\n{}\n", title);
  for (std::size_t i = 0; i < std::min(lines.size(), kMaxListed); ++i) fmt::print(out, "  {}\n", lines[i]);
  if (lines.size() > kMaxListed) {
    fmt::print(out, "  and {} more (--json lists all)\n",
               grouped(static_cast<std::int64_t>(lines.size() - kMaxListed)));
  }
}

void print_text(std::ostream& out, const Checkpoint& checkpoint, const Inventory& inventory,
                const InspectOptions& options) {
  const KindSum sum = total(inventory);
  fmt::print(out, "{}\n", options.directory.string());
  fmt::print(out, "{}: {}\n", inventory.model_type, inventory.summary);
  fmt::print(out, "{}, {}, {} parameters\n\n", plural(checkpoint.shards().size(), "shard"),
             plural(static_cast<std::size_t>(sum.n_tensors), "tensor"), grouped(inventory.n_parameters()));

  const char* row = "{:<14}{:>9}{:>17}{:>17}{}\n";
  fmt::print(out, fmt::runtime(row), "kind", "tensors", "elements", "bytes", "  dtypes");
  for (const auto& [kind, part] : inventory.kinds) {
    fmt::print(out, fmt::runtime(row), checkpoint::tensor_kind_name(kind), grouped(part.n_tensors),
               grouped(part.n_elements), grouped(part.n_bytes),
               fmt::format("  {}", fmt::join(dtype_names(part), ", ")));
  }
  fmt::print(out, fmt::runtime(row), "total", grouped(sum.n_tensors), grouped(sum.n_elements), grouped(sum.n_bytes),
             "");

  print_list(out, "notes", inventory.notes);
  std::vector<std::string> left_alone;
  for (const auto& [prefix, part] : inventory.left_alone) left_alone.push_back(sum_text(prefix, part));
  print_list(out, "known, not read by this program", left_alone);
  print_list(out, "tensors that this family does not know", inventory.unexpected);
  std::vector<std::string> problems;
  for (const checkpoint::Problem& problem : inventory.problems) {
    problems.push_back(
        fmt::format("{}{}{}: {}", problem.file, problem.file.empty() ? "" : ": ", problem.tensor, problem.text));
  }
  print_list(out, "problems", problems);

  fmt::print(out, "\nfingerprint {}{}\n", checkpoint::fingerprint(checkpoint, options.full_fingerprint),
             options.full_fingerprint ? " (all bytes)" : "");
  const char* values =
      options.full_fingerprint ? "; every value is finite" : "; values not looked at (--full-fingerprint does)";
  if (problems.empty()) {
    fmt::print(out, "whole: every tensor of the family is there, of the right shape and dtype{}\n", values);
  } else {
    fmt::print(out, "not whole: {}\n", plural(problems.size(), "problem"));
  }
}

}  // namespace

int inspect_command(const InspectOptions& options, std::ostream& out) {
  const Checkpoint checkpoint = Checkpoint::open(options.directory);
  const Inventory inventory = checkpoint::take_inventory(checkpoint, options.full_fingerprint);
  if (options.json) {
    out << to_json(checkpoint, inventory, options).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
        << '\n';
  } else {
    print_text(out, checkpoint, inventory, options);
  }
  return inventory.problems.empty() ? 0 : 1;
}

}  // namespace kalibri::cli

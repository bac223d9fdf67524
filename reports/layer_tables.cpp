// Tables that go by layer: the residual, the other tensors, and the reference's residual maxima.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/cells.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

constexpr std::size_t kCompactLayers = 12;

double layer_badness(const json& row) {
  return row.at("status") == "fell_short" ? HUGE_VAL : nearness(row.at("rel_token_max"), row.at("bound"));
}

/// Of each layer the worst prompt; of many layers those nearest to their bounds.
Rows nearest_layers(const Rows& all) {
  Rows rows = worst_of_each(all, "layer", layer_badness);
  if (rows.size() <= kCompactLayers) return rows;
  std::stable_sort(rows.begin(), rows.end(),
                   [](const json& a, const json& b) { return layer_badness(a) > layer_badness(b); });
  rows.resize(kCompactLayers);
  std::sort(rows.begin(), rows.end(), [](const json& a, const json& b) { return a.at("layer") < b.at("layer"); });
  return rows;
}

/// rel of each stream of the residual, or of the worst alone; null where the residual is one stream.
json streams(const json& row, Detail detail) {
  if (!row.contains("rel_per_stream")) return nullptr;
  const json& all = row.at("rel_per_stream");
  if (detail == Detail::compact) {
    return *std::max_element(all.begin(), all.end(),
                             [](const json& a, const json& b) { return nearness(a, nullptr) < nearness(b, nullptr); });
  }
  std::string text;
  for (const json& rel : all) text += (text.empty() ? "" : ", ") + number_text(rel);
  return text;
}

}  // namespace

Table layer_table(const json& comparison, Detail detail, bool judged) {
  Rows rows = comparison.at("rows").get<Rows>();
  if (detail == Detail::compact) rows = nearest_layers(rows);
  const bool has_streams = !rows.empty() && rows.front().contains("rel_per_stream");
  for (json& row : rows) row["streams"] = streams(row, detail);
  std::vector<Field> fields = {{"layer", "layer", Kind::count},
                               {"prompt", "prompt", Kind::name},
                               {"rel", "rel", Kind::number},
                               {"rel_token_max", "rel_token_max", Kind::number},
                               {"trimmed", "rel_token_max_trimmed", Kind::number},
                               {"max_abs", "max_abs", Kind::number},
                               {"sets", "route_same_frac", Kind::share},
                               {"diff", "route_diff_tokens", Kind::count}};
  if (judged) {
    fields.insert(fields.begin() + 4, {"bound", "bound", Kind::number});
    fields.push_back({"status", "status", Kind::status});
  } else {
    fields.push_back({"cos_last", "cos_last", Kind::number});
  }
  if (has_streams && detail == Detail::full) {
    fields.insert(fields.begin() + 3, {"rel by stream", "streams", Kind::count});
  } else if (has_streams) {  // a terminal has no room for max_abs as well
    std::erase_if(fields, [](const Field& field) { return field.title == std::string("max_abs"); });
    fields.insert(fields.begin() + 3, {"stream", "streams", Kind::number});
  }
  Table table = make_table(fields, rows);
  if (detail == Detail::compact) {
    table.note = rows.size() < kCompactLayers
                     ? "residual after the layer; of each layer the worst prompt"
                     : "residual after the layer; the layers nearest to their bounds, of each the worst prompt";
    if (has_streams) table.note += "; stream: rel of the worst one";
  }
  return table;
}

Table blocks_table(const json& comparison, Detail detail) {
  Rows rows;
  for (const json& row : comparison.at("rows")) {
    if (row.at("blocks").is_null()) continue;
    rows.push_back(row.at("blocks"));
    rows.back()["layer"] = row.at("layer");
    rows.back()["prompt"] = row.at("prompt");
  }
  if (detail == Detail::compact) {
    rows = worst_of_each(rows, "layer", [](const json& row) {  // the most differing, then the most with a choice
      return (row.at("status") == "fell_short" ? 1e24 : 0) + row.at("differing_queries").get<double>() * 1e12 +
             row.at("queries_with_choice").get<double>();
    });
  }
  Table table = make_table({{"layer", "layer", Kind::count},
                            {"prompt", "prompt", Kind::name},
                            {"with a choice", "queries_with_choice", Kind::count},
                            {"same", "same_frac", Kind::share},
                            {"differ", "differing_queries", Kind::count},
                            {"ties", "ties_excused", Kind::count},
                            {"largest gap", "largest_gap_excused", Kind::number},
                            {"gap bound", "gap_bound", Kind::number},
                            {"status", "status", Kind::status}},
                           rows);
  table.note = "queries of sparse attention, and whether they kept the same blocks";
  if (detail == Detail::compact) table.note += "; of each layer the worst prompt";
  return table;
}

Table tensor_table(const json& comparison) {
  Rows tensors;
  for (const json& row : comparison.at("rows")) {
    for (const auto& [name, numbers] : row.at("tensors").items()) {
      json tensor = numbers;
      tensor["tensor"] = name;
      tensor["layer"] = row.at("layer");
      tensor["prompt"] = row.at("prompt");
      tensors.push_back(std::move(tensor));
    }
  }
  const Rows rows = worst_of_each(tensors, "tensor", [](const json& tensor) {
    return tensor.at("status") == "fell_short" ? HUGE_VAL : nearness(tensor.at("value"), tensor.at("bound"));
  });
  Table table = make_table({{"tensor", "tensor", Kind::name},
                            {"layer", "layer", Kind::count},
                            {"prompt", "prompt", Kind::name},
                            {"judged by", "measure", Kind::name},
                            {"value", "value", Kind::number},
                            {"bound", "bound", Kind::number},
                            {"rel", "rel", Kind::number},
                            {"max_abs", "max_abs", Kind::number},
                            {"status", "status", Kind::status}},
                           rows);
  table.note = "of each tensor the row nearest to its bound";
  return table;
}

Table residual_max_table(const json& comparison, Detail detail) {
  const json& prompts = comparison.at("prompts");
  const auto longest = std::max_element(prompts.begin(), prompts.end(),
                                        [](const json& a, const json& b) { return a.at("T") < b.at("T"); });
  Rows rows;
  for (auto prompt = prompts.begin(); prompt != prompts.end(); ++prompt) {
    if (detail == Detail::compact && prompt != longest) continue;
    const json& layers = prompt->at("residual_max");
    const std::size_t step = detail == Detail::full ? 1 : (layers.size() + kCompactLayers - 1) / kCompactLayers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (i + 1 != layers.size() && i % step != 0) continue;
      json row = layers[i];
      row["prompt"] = prompt->at("prompt");
      for (std::size_t p = 0; p < 3; ++p) {
        row[fmt::format("p{}", p)] = p < row.at("first").size() ? row.at("first")[p] : json();
      }
      rows.push_back(std::move(row));
    }
  }
  Table table = make_table({{"prompt", "prompt", Kind::name},
                            {"layer", "layer", Kind::count},
                            {"position 0", "p0", Kind::number},
                            {"position 1", "p1", Kind::number},
                            {"position 2", "p2", Kind::number},
                            {"median from 16 on", "median_from_16", Kind::number}},
                           rows);
  table.note = "largest |x| of the reference's residual: an early sink token stands out";
  if (detail == Detail::compact) table.note += "; the longest prompt";
  return table;
}

}  // namespace kalibri::reports

#include "reports/accuracy_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reports/cells.hpp"
#include "reports/embedded.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

/// The member at `pointer`, or null when it is not there.
json at(const json& value, const std::string& pointer) {
  const json::json_pointer place(pointer);
  return value.contains(place) ? value.at(place) : json();
}

/// The element of `list` that agrees with `row` in all `members`; null when there is none.
json counterpart(const json& list, const json& row, const std::vector<std::string>& members) {
  for (const json& other : list) {
    if (std::all_of(members.begin(), members.end(), [&](const auto& name) { return other.at(name) == row.at(name); }))
      return other;
  }
  return nullptr;
}

/// Measured rows and, of the same length, published ones (null: none of that row).
struct Pairs {
  Rows measured, published;
};

Pairs pairs(const json& measured, const json& published, const std::vector<std::string>& members) {
  Pairs result;
  for (const json& row : measured) {
    result.measured.push_back(row);
    result.published.push_back(counterpart(published, row, members));
  }
  return result;
}

/// Columns of the keys, then of each value a measured and a published column; the latter is left out when nothing of it
/// was published. Members are JSON pointers.
Table paired_table(const std::vector<Field>& keys, const std::vector<Field>& values, const Pairs& rows) {
  Table table;
  table.rows.resize(rows.measured.size());
  const auto add = [&](const char* title, const Field& field, const Rows& from) {
    table.columns.push_back({title, field.kind != Kind::name});
    for (std::size_t i = 0; i < from.size(); ++i) table.rows[i].push_back(cell(at(from[i], field.member), field.kind));
  };
  for (const Field& key : keys) add(key.title, key, rows.measured);
  for (const Field& value : values) {
    add(value.title, value, rows.measured);
    const bool any = std::any_of(rows.published.begin(), rows.published.end(),
                                 [&](const json& row) { return !at(row, value.member).is_null(); });
    if (any) add("published", value, rows.published);
  }
  return table;
}

/// The published variant of the same name; an empty object when there is none.
json published_variant(const json& tables, const json& variant) {
  const json found = counterpart(at(tables, "/published/variants"), variant, {"name"});
  return found.is_null() ? json::object() : found;
}

json measured_variants(const json& tables) {
  json variants = json::array();
  for (const json& variant : tables.at("variants")) {
    if (variant.at("status") == "measured") variants.push_back(variant);
  }
  return variants;
}

Table titled(const std::string& title, const std::string& note, Table table) {
  table.title = title;
  table.note = note;
  return table;
}

Table prompts_table(const json& tables) {
  const Pairs rows = pairs(tables.at("prompts"), at(tables, "/published/prompts"), {"name"});
  const char* note = tables.at("published").is_null() ? "" : "published: its author's own texts of these names";
  return titled("Prompts", note,
                paired_table({{"prompt", "/name", Kind::name}}, {{"tokens", "/T", Kind::count}}, rows));
}

Table variants_table(const json& tables) {
  const Pairs rows = pairs(measured_variants(tables), at(tables, "/published/variants"), {"name"});
  return titled("Variants", "means over all tokens of all prompts, each variant running by itself",
                paired_table({{"variant", "/name", Kind::name}},
                             {{"KL mean", "/kl_mean", Kind::number},
                              {"top-1", "/top1", Kind::share},
                              {"expert sets", "/sets_same", Kind::share}},
                             rows));
}

Table teacher_forced_table(const json& tables, bool full) {
  std::vector<Field> values = {{"max rel", "/teacher_forced/max_rel", Kind::number},
                               {"median rel", "/teacher_forced/median_rel", Kind::number},
                               {"sets", "/teacher_forced/sets_same", Kind::share}};
  if (full) values.push_back({"least", "/teacher_forced/sets_same_min", Kind::share});
  values.push_back({"differing", "/teacher_forced/n_differing", Kind::count});
  const Pairs rows = pairs(measured_variants(tables), at(tables, "/published/variants"), {"name"});
  return titled("Teacher-forced, layer by layer",
                "each layer fed by the reference, one row a layer and prompt; rel: error of the layer's output; sets: "
                "share of tokens with the reference's experts; differing: pairs of token and layer with others",
                paired_table({{"variant", "/name", Kind::name}}, values, rows));
}

Table end_to_end_table(const json& tables, const json& variant, bool full) {
  std::vector<Field> values = {
      {"top-1", "/top1", Kind::share}, {"top-5", "/top5", Kind::share}, {"KL mean", "/kl_mean", Kind::number}};
  if (full) values.push_back({"KL p95", "/kl_p95", Kind::number});
  values.push_back({"KL max", "/kl_max", Kind::number});
  if (full) {
    values.push_back({"expert sets", "/sets_same", Kind::share});
    values.push_back({"decode diff", "/decode_max_diff", Kind::number});
  }
  const json published = published_variant(tables, variant);
  return titled(fmt::format("{}: end to end", variant.at("name").get<std::string>()),
                variant.at("precision").get<std::string>(),
                paired_table({{"prompt", "/prompt", Kind::name}}, values,
                             pairs(variant.at("end_to_end"), at(published, "/end_to_end"), {"prompt"})));
}

/// Bands of the prompts beyond the window, or of all when none is. Of the last one only the beginning need agree: it
/// ends with its prompt.
Table bands_table(const json& tables, const json& variant) {
  const json published = published_variant(tables, variant);
  Pairs rows;
  const auto window = tables.at("/checkpoint/window"_json_pointer).get<std::int64_t>();
  const auto is_long = [&](const json& prompt) { return prompt.at("T").get<std::int64_t>() > window; };
  const json& prompts = variant.at("bands");
  const bool any_long = std::any_of(prompts.begin(), prompts.end(), is_long);
  for (const json& prompt : prompts) {
    if (any_long && !is_long(prompt)) continue;
    const json other = counterpart(at(published, "/bands"), prompt, {"prompt"});
    for (json band : prompt.at("bands")) {
      json twin = counterpart(at(other, "/bands"), band, {"first"});
      const bool is_last = band.at("end") == prompt.at("T") && at(twin, "/end") == at(other, "/T");
      if (!is_last && at(twin, "/end") != band.at("end")) twin = nullptr;
      band["prompt"] = prompt.at("prompt");
      band["positions"] = fmt::format("[{}, {})", band.at("first").dump(), band.at("end").dump());
      rows.measured.push_back(std::move(band));
      rows.published.push_back(std::move(twin));
    }
  }
  return titled(fmt::format("{}: position bands", variant.at("name").get<std::string>()),
                "decode: the first 64 tokens one by one through the caches",
                paired_table({{"prompt", "/prompt", Kind::name}, {"positions", "/positions", Kind::name}},
                             {{"KL mean", "/kl_mean", Kind::number},
                              {"top-1", "/top1", Kind::share},
                              {"decode KL", "/decode_kl_mean", Kind::number},
                              {"decode top-1", "/decode_top1", Kind::share}},
                             rows));
}

Table decode_table(const json& tables, const json& variant) {
  const json published = published_variant(tables, variant);
  return titled(fmt::format("{}: decode against prefill", variant.at("name").get<std::string>()),
                "the same engine and weights; tail: the last tokens after a prefill of the others, head and bands: the "
                "first ones from empty caches",
                paired_table({{"prompt", "/prompt", Kind::name},
                              {"schedule", "/schedule", Kind::name},
                              {"prefilled", "/n_prefilled", Kind::count},
                              {"rows", "/n_rows", Kind::count}},
                             {{"KL mean", "/kl_mean", Kind::number},
                              {"KL max", "/kl_max", Kind::number},
                              {"top-1", "/top1", Kind::share},
                              {"max logit diff", "/max_abs_logit", Kind::number}},
                             pairs(variant.at("decode"), at(published, "/decode"), {"prompt", "schedule"})));
}

Table residual_table(const json& tables) {
  Pairs rows;
  for (const json& prompt : tables.at("residual_max")) {
    const json other = counterpart(at(tables, "/published/residual_max"), prompt, {"prompt"});
    for (json row : prompt.at("rows")) {
      row["prompt"] = prompt.at("prompt");
      rows.published.push_back(counterpart(at(other, "/rows"), row, {"layer"}));
      rows.measured.push_back(std::move(row));
    }
  }
  return titled("Residual maxima of the reference", "largest |x| after a layer: a token far above the median is a sink",
                paired_table({{"prompt", "/prompt", Kind::name}, {"layer", "/layer", Kind::count}},
                             {{"position 0", "/first/0", Kind::number},
                              {"position 1", "/first/1", Kind::number},
                              {"position 2", "/first/2", Kind::number},
                              {"median from 16", "/median_from_16", Kind::number}},
                             rows));
}

std::vector<Table> all_tables(const json& tables, bool full) {
  std::vector<Table> all;
  if (full) all.push_back(prompts_table(tables));
  all.push_back(variants_table(tables));
  all.push_back(teacher_forced_table(tables, full));
  for (const json& variant : measured_variants(tables)) {
    all.push_back(end_to_end_table(tables, variant, full));
    if (!full) continue;
    all.push_back(bands_table(tables, variant));
    all.push_back(decode_table(tables, variant));
  }
  if (full) all.push_back(residual_table(tables));
  return all;
}

std::string introduction(const json& tables) {
  const json& checkpoint = tables.at("checkpoint");
  const json& program = tables.at("program");
  return fmt::format("{} ({}, {} layers, fingerprint {}): kalibri {} ({}) against {}, {}.",
                     checkpoint.at("name").get<std::string>(), checkpoint.at("model_type").get<std::string>(),
                     checkpoint.at("n_layers").dump(), checkpoint.at("fingerprint").get<std::string>().substr(0, 12),
                     program.at("version").get<std::string>(), program.at("isa").get<std::string>(),
                     tables.at("/reference/producer"_json_pointer).get<std::string>(),
                     tables.at("/reference/precision"_json_pointer).get<std::string>());
}

/// What the column "published" is; empty when there is none.
std::string about_published(const json& tables) {
  const json& published = tables.at("published");
  if (published.is_null()) return "";
  return fmt::format(
      "Published: the real {} of {} layers: {}; {}. They are figures to compare with only where the checkpoint is that "
      "one, and then for prompts of the same kind; of another checkpoint, compare the order of the variants.",
      published.at("model").get<std::string>(), published.at("n_layers").dump(), published.at("how").get<std::string>(),
      published.at("source").get<std::string>());
}

/// One line a variant that was not run, or whose numbers are not finite.
std::vector<std::string> remarks(const json& tables) {
  std::vector<std::string> lines;
  for (const json& variant : tables.at("variants")) {
    const auto name = variant.at("name").get<std::string>();
    if (variant.at("status") == "not_run") {
      lines.push_back(fmt::format("{}: not run: {}", name, variant.at("reason").get<std::string>()));
    } else if (!variant.at("not_finite").is_null()) {
      lines.push_back(fmt::format("{}: a value is not finite: {}", name, variant.at("not_finite").get<std::string>()));
    }
  }
  return lines;
}

}  // namespace

json published_figures(const std::string& model_type) {
  const json figures = json::parse(kPublishedKolibri1);
  return figures.at("model_type") == model_type ? figures : json();
}

std::string tables_terminal(const json& tables, bool colour) {
  std::string text = wrapped(introduction(tables), 0) + "\n";
  for (const Table& table : all_tables(tables, false)) text += "\n" + terminal_text(table, colour);
  for (const std::string& line : remarks(tables)) text += "\n" + wrapped(line, 2) + "\n";
  if (const std::string about = about_published(tables); !about.empty()) text += "\n" + wrapped(about, 0) + "\n";
  return text;
}

std::string tables_markdown(const json& tables) {
  std::string text = fmt::format("# Accuracy tables\n\n{}\n", markdown_escaped(introduction(tables)));
  text +=
      "\nKL(reference || variant) of the next token in nats. top-1, top-5: share of the likeliest tokens in common.\n";
  if (const std::string about = about_published(tables); !about.empty()) text += "\n" + markdown_escaped(about) + "\n";
  const std::vector<std::string> lines = remarks(tables);
  if (!lines.empty()) text += "\n";
  for (const std::string& line : lines) text += fmt::format("- {}\n", markdown_escaped(line));
  for (const Table& table : all_tables(tables, true)) text += markdown_text(table);
  return text;
}

}  // namespace kalibri::reports

// Tables that go by prompt, band and decode schedule: what comes out of the head.
#include <fmt/format.h>

#include <algorithm>

#include "reports/cells.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

/// "17 (p 0.412)": the likeliest of [token, probability] pairs.
json likeliest(const json& ranked) {
  if (ranked.empty()) return nullptr;
  return fmt::format("{} (p {})", ranked.front().at(0).dump(), number_text(ranked.front().at(1)));
}

}  // namespace

Table logits_table(const json& comparison) {
  Table table = make_table({{"prompt", "prompt", Kind::name},
                            {"T", "T", Kind::count},
                            {"top1", "top1", Kind::share},
                            {"top5", "top5", Kind::share},
                            {"kl_mean", "kl_mean", Kind::number},
                            {"kl_p95", "kl_p95", Kind::number},
                            {"kl_max", "kl_max", Kind::number},
                            {"at", "worst_kl_pos", Kind::count},
                            {"max_abs", "max_abs_logit", Kind::number},
                            {"status", "status", Kind::status}},
                           comparison.at("logits").get<Rows>());
  table.note = "KL(reference || candidate) in nats";
  return table;
}

Table end_to_end_table(const json& comparison) {
  Rows rows = comparison.at("rows").get<Rows>();
  for (json& row : rows) {
    row["reference"] = likeliest(row.at("next_ref"));
    row["candidate"] = likeliest(row.at("next_candidate"));
  }
  Table table = make_table({{"prompt", "prompt", Kind::name},
                            {"T", "T", Kind::count},
                            {"top1", "top1", Kind::share},
                            {"kl_mean", "kl_mean", Kind::number},
                            {"hidden_rel", "hidden_rel", Kind::number},
                            {"next, reference", "reference", Kind::name},
                            {"next, engine", "candidate", Kind::name},
                            {"decode_max_diff", "decode_max_diff", Kind::number}},
                           rows);
  table.note = "next: likeliest token after the prompt; decode_max_diff: the engine's decode against its prefill";
  return table;
}

Table bands_table(const json& comparison, Detail detail) {
  Rows rows;
  for (const json& prompt : comparison.at("prompts")) {
    for (json band : prompt.at("bands")) {
      band["prompt"] = prompt.at("prompt");
      band["positions"] = fmt::format("[{}, {})", band.at("first").dump(), band.at("end").dump());
      rows.push_back(std::move(band));
    }
  }
  if (detail == Detail::compact) {
    rows = worst_of_each(rows, "first", [](const json& band) {
      const double prefill = nearness(band.at("kl_mean"), band.at("bound"));
      const bool is_decoded = !band.at("decode_top1").is_null();
      return is_decoded ? std::max(prefill, nearness(band.at("decode_kl_mean"), band.at("bound"))) : prefill;
    });
  }
  Table table = make_table({{"positions", "positions", Kind::name},
                            {"prompt", "prompt", Kind::name},
                            {"kl_mean", "kl_mean", Kind::number},
                            {"top1", "top1", Kind::share},
                            {"decode kl_mean", "decode_kl_mean", Kind::number},
                            {"decode top1", "decode_top1", Kind::share},
                            {"bound", "bound", Kind::number}},
                           rows);
  if (detail == Detail::compact) table.note = "of each band the prompt nearest to its bound, prefilled or decoded";
  return table;
}

Table decode_table(const json& comparison, Detail detail) {
  Rows rows = comparison.at("rows").get<Rows>();
  if (detail == Detail::compact) {
    rows = worst_of_each(rows, "schedule", [](const json& row) {  // differing rows first, then the longest
      return row.at("rows_differing").get<double>() * 1e12 + row.at("n_rows").get<double>();
    });
  }
  Table table = make_table({{"schedule", "schedule", Kind::name},
                            {"prompt", "prompt", Kind::name},
                            {"prefilled", "n_prefilled", Kind::count},
                            {"rows", "n_rows", Kind::count},
                            {"differing", "rows_differing", Kind::count},
                            {"max_abs", "max_abs_logit", Kind::number},
                            {"kl_mean", "kl_mean", Kind::number},
                            {"top1", "top1", Kind::share},
                            {"status", "status", Kind::status}},
                           rows);
  table.note = "against the same engine's prefill: bits must be equal";
  if (detail == Detail::compact) table.note += "; of each schedule the prompt that differs most, else the longest";
  return table;
}

}  // namespace kalibri::reports

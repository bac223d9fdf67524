// A report's rows as tables of text, which every renderer prints in its own way.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kalibri::reports {

struct Cell {
  std::string text;
  std::string status;          // a status name when the cell says one, else empty
  double share_of_bound = -1;  // when the cell says how much of a bound is used; else negative
};

struct Column {
  std::string title;
  bool right;  // aligned right: numbers
};

struct Table {
  std::string check;  // of the findings that belong to it
  std::string title;
  std::string note;  // which rows these are; may be empty
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

enum class Detail {
  compact,  // of each layer, band and schedule the worst prompt; of many layers those nearest to their bounds
  full,     // every row
};

/// All tables of the report but the findings, in the order of the checks; those without rows are left out.
std::vector<Table> tables(const nlohmann::json& report, Detail detail);

/// Status, id, value, bound and place of each finding; the heaviest first.
Table findings_table(const nlohmann::json& report);

/// Findings by falling weight, in the report's order within one status.
std::vector<nlohmann::json> sorted_findings(const nlohmann::json& report);

/// The finding of `check` nearest to its bound (or furthest above) as one line; empty when there is none.
std::string worst_of(const nlohmann::json& report, const std::string& check);

// One table as text.

/// "## TITLE", the note and the table.
std::string markdown_text(const Table& table);
/// What would end a cell or start markup is escaped.
std::string markdown_escaped(const std::string& text);
/// The title with the note, and aligned columns, at most 100 columns wide where words can give way.
std::string terminal_text(const Table& table, bool colour);
/// Broken at spaces at 100 columns; the first line begins at `column`, the others at `indent`.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t column = 0);

/// One line: what was verified, in which precision, by which program.
std::string heading(const nlohmann::json& report);

/// "held", "fell short", …
std::string status_words(const std::string& status);

}  // namespace kalibri::reports

#include "ci/tests/include_rules.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>

namespace kalibri::ci {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string_view folder;
  std::vector<std::string_view> may_include;  // besides the folder itself
};

// The longest folder that holds a file is its row.
const std::vector<Row> kTable = {
    {"engine/base", {}},
    {"engine/kernels", {"engine/base/check.hpp"}},
    {"engine/checkpoint", {"engine/base", "engine/kernels"}},
    {"engine/runtime", {"engine/base", "engine/kernels", "engine/checkpoint"}},
    {"engine/model", {"engine/base", "engine/kernels", "engine/checkpoint", "engine/runtime"}},
    {"engine/text", {"engine/base"}},
    {"engine/server",
     {"engine/base", "engine/kernels", "engine/checkpoint", "engine/runtime", "engine/model", "engine/text"}},
    {"engine/cli", {"engine", "oracle", "reports"}},
    {"oracle/dump", {}},
    {"oracle/metrics", {"oracle/dump"}},
    {"oracle/statistics", {"oracle/dump"}},
    {"oracle", {}},
    {"reference", {"oracle/dump"}},
    {"reports", {}},
    {"fixtures", {}},
    {"ci", {}},
};

constexpr std::array<std::string_view, 6> kSourceFolders = {"engine",  "oracle",   "reference",
                                                            "reports", "fixtures", "ci"};

bool is_within(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

bool is_in_tests(std::string_view path) {
  return path.find("/tests/") != std::string_view::npos || path.ends_with("/tests");
}

const Row* row_of(std::string_view file) {
  const Row* longest = nullptr;
  for (const Row& row : kTable) {
    if (is_within(file, row.folder) && (longest == nullptr || row.folder.size() > longest->folder.size()))
      longest = &row;
  }
  return longest;
}

/// What one file's include lines break.
void check_file(const fs::path& root, const std::string& file, std::vector<std::string>& violations) {
  static const std::regex include_line(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  std::ifstream stream(root / file);
  std::string line;
  bool is_first = true;
  for (int number = 1; std::getline(stream, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, include_line)) continue;
    const bool is_quoted = match[1] == "\"";
    const std::string included = match[2];
    const auto violation = [&](const std::string& what) {
      violations.push_back(file + ":" + std::to_string(number) + ": " + what);
    };
    const std::string own = own_header(file);
    if (is_first && file.ends_with(".cpp") && fs::exists(root / own) && included != own) {
      violation("the first include is not the file's own header " + own);
    }
    is_first = false;
    const bool is_ours = std::ranges::any_of(kSourceFolders, [&](auto folder) { return is_within(included, folder); });
    if (included.find("..") != std::string::npos) {
      violation("'..' in an include");
    } else if (!is_quoted && is_ours) {
      violation("<" + included + ">: the project's own headers are included with quotes");
    } else if (is_quoted && !(is_ours && fs::exists(root / included))) {
      violation("\"" + included + "\" is no file of the project, written from the root");
    } else if (is_quoted && !may_include(file, included)) {
      violation("may not include " + included);
    }
  }
}

}  // namespace

bool may_include(std::string_view file, std::string_view included) {
  const Row* row = row_of(file);
  if (row == nullptr) return false;
  if (is_in_tests(file) && is_within(included, "fixtures")) return true;
  if (is_in_tests(included) && !is_in_tests(file)) return false;
  if (is_within(included, row->folder)) return true;
  return std::ranges::any_of(row->may_include, [&](auto allowed) { return is_within(included, allowed); });
}

std::vector<std::string> source_files(const fs::path& root) {
  std::vector<std::string> files;
  for (const std::string_view folder : kSourceFolders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension == ".hpp" || extension == ".cpp")
        files.push_back(fs::relative(entry.path(), root).generic_string());
    }
  }
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> include_violations(const fs::path& root) {
  std::vector<std::string> violations;
  for (const std::string& file : source_files(root)) {
    if (row_of(file) == nullptr) {
      violations.push_back(file + ": its folder is not in the table");
    } else {
      check_file(root, file, violations);
    }
  }
  return violations;
}

std::string own_header(const std::string& file) { return fs::path(file).replace_extension(".hpp").generic_string(); }

}  // namespace kalibri::ci

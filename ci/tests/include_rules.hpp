// The table of who may include whom, and a walk over the include lines of a source tree.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kalibri::ci {

/// Whether source file `file` ("engine/model/router.cpp") may include `included` ("engine/base/check.hpp", or a folder
/// that its include root shows). Both are written from the root. False for a file in no folder of the table.
bool may_include(std::string_view file, std::string_view included);

/// Every .hpp and .cpp file in the tree's source folders, from the root, sorted.
std::vector<std::string> source_files(const std::filesystem::path& root);

/// What the include lines of the tree break, one text a finding ("engine/base/a.cpp:3: ..."): the table, `..`, includes
/// not written from the root, and an own header that does not come first.
std::vector<std::string> include_violations(const std::filesystem::path& root);

/// The header that `file`, a .cpp, has for its own, by its name ("engine/base/a.hpp").
std::string own_header(const std::string& file);

}  // namespace kalibri::ci

// The build's own record of how each source file is compiled (compile_commands.json).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kalibri::ci {

struct CompileCommand {
  std::string file;     // from the source tree's root; from the build folder's for a generated file
  std::string command;  // for a shell
  std::filesystem::path directory;
  /// Folders and headers that the command's include root shows, from the root ("engine/base", "oracle/dump"); a folder
  /// of links that lead to the project's sources. Sorted.
  std::vector<std::string> shown;
};

/// All commands of the build in `build_directory`. Throws std::runtime_error.
std::vector<CompileCommand> read_compile_commands(const std::filesystem::path& build_directory,
                                                  const std::filesystem::path& source_directory);

struct CompileResult {
  bool compiles = false;
  std::string messages;
};

/// Compiles `text` as `command` compiles its own file: same compiler, flags and include root. Nothing is written.
CompileResult compile_like(const CompileCommand& command, const std::string& text);

}  // namespace kalibri::ci

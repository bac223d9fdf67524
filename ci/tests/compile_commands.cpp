#include "ci/tests/compile_commands.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>

#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::ci {
namespace {

namespace fs = std::filesystem;

std::string relative_to(const fs::path& file, const fs::path& source_directory, const fs::path& build_directory) {
  const std::string in_build = fs::relative(file, build_directory).generic_string();
  return in_build.starts_with("..") ? fs::relative(file, source_directory).generic_string() : in_build;
}

/// The links below `root`, from there.
std::vector<std::string> links_below(const fs::path& root) {
  std::vector<std::string> links;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_symlink()) links.push_back(entry.path().lexically_relative(root).generic_string());
  }
  std::ranges::sort(links);
  return links;
}

/// The include folders on a command line that are roots of links.
std::vector<std::string> shown_by(const std::string& command, const fs::path& build_directory) {
  static const std::regex include_flag(R"re(-I("[^"]+"|(?:\\.|[^\s\\])+))re");
  std::vector<std::string> shown;
  for (auto match = std::sregex_iterator(command.begin(), command.end(), include_flag); match != std::sregex_iterator();
       ++match) {
    std::string folder = (*match)[1];
    std::erase_if(folder, [](char c) { return c == '"' || c == '\\'; });
    if (fs::path(folder).parent_path() != build_directory / "roots") {
      throw std::runtime_error("an include folder that is no root of links: " + folder);
    }
    for (std::string& link : links_below(folder)) shown.push_back(std::move(link));
  }
  return shown;
}

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

}  // namespace

std::vector<CompileCommand> read_compile_commands(const fs::path& build_directory, const fs::path& source_directory) {
  std::vector<CompileCommand> commands;
  const auto json = nlohmann::json::parse(fixtures::read_file(build_directory / "compile_commands.json"));
  for (const auto& entry : json) {
    CompileCommand command;
    command.file = relative_to(entry.at("file").get<std::string>(), source_directory, build_directory);
    command.command = entry.at("command");
    command.directory = entry.at("directory").get<std::string>();
    command.shown = shown_by(command.command, build_directory);
    commands.push_back(std::move(command));
  }
  return commands;
}

CompileResult compile_like(const CompileCommand& command, const std::string& text) {
  const fixtures::TempDirectory directory;
  const fs::path file = directory.path() / "probe.cpp";
  fixtures::write_file(file, text);
  const std::string flags = command.command.substr(0, command.command.find(" -o "));
  fixtures::RunOptions options;
  options.working_directory = command.directory;
  options.environment = {{"LC_ALL", "C"}};
  const auto result = fixtures::run_program("/bin/sh", {"-c", flags + " -fsyntax-only " + quoted(file)}, options);
  return {result.exit_status == 0, result.err};
}

}  // namespace kalibri::ci

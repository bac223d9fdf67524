// Starts another program and waits: kalibri-reference, which shares no code with this one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kalibri::cli {

/// Runs `program` with `arguments` (no shell, standard output dropped). Throws Error(file) when it cannot be started,
/// and with the last lines of its standard error when it fails.
void run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments);

/// The program `name` beside this process's own executable.
std::filesystem::path program_beside(const std::string& name);

}  // namespace kalibri::cli

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

/// What runs of kalibri-reference over one checkpoint and its prompts have in common.
struct ReferenceRun {
  std::filesystem::path program;
  std::string checkpoint;
  std::filesystem::path tokens;  // FILE.json
  int n_threads = 0;             // 0 = as the program has it
};

/// `named`, or kalibri-reference beside this program when it is empty.
std::filesystem::path reference_program(const std::string& named);

/// `kalibri-reference run`, with `more` arguments, into the dump `out`. Throws what run_program throws, and Error(file)
/// when the program ended without an error and without the dump.
void run_reference(const ReferenceRun& run, const std::vector<std::string>& more, const std::filesystem::path& out);

}  // namespace kalibri::cli

// Runs the engine's program and the reference's on one checkpoint, so that a test asks the same of both.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fixtures/generator.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_writer.hpp"

namespace kalibri::test {

using Tokens = std::map<std::string, std::vector<std::int64_t>>;

/// Seeded ids below n_vocab.
inline std::vector<std::int64_t> random_ids(std::int64_t n, std::int64_t n_vocab, std::uint64_t seed = 1) {
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(n); ++i) {
    const std::uint64_t word = fixtures::random_word(seed, i) >> 32;
    ids.push_back(static_cast<std::int64_t>((word * static_cast<std::uint64_t>(n_vocab)) >> 32));
  }
  return ids;
}

enum class Side { engine, reference };
inline constexpr Side kSides[] = {Side::engine, Side::reference};
inline const char* name(Side side) { return side == Side::engine ? "engine" : "reference"; }

inline fixtures::RunResult kalibri_program(const std::vector<std::string>& arguments) {
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri", arguments, {.timeout = std::chrono::minutes(30)});
}

/// `kalibri dump` or `kalibri-reference run`. `out` lies in a folder that may be written.
inline fixtures::RunResult run_side(Side side, const std::filesystem::path& checkpoint, const Tokens& tokens,
                                    const std::filesystem::path& out, const std::vector<std::string>& more = {}) {
  const std::filesystem::path file = out.string() + ".tokens.json";
  fixtures::write_file(file, nlohmann::json(tokens).dump());
  std::vector<std::string> arguments{side == Side::engine ? "dump" : "run", checkpoint, "--tokens", file, "-o", out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const char* program = side == Side::engine ? KALIBRI_BIN_DIR "/kalibri" : KALIBRI_BIN_DIR "/kalibri-reference";
  return fixtures::run_program(program, arguments, {.timeout = std::chrono::minutes(30)});
}

inline nlohmann::json report_of(const std::filesystem::path& directory) {
  return nlohmann::json::parse(fixtures::read_file(directory / "report.json"));
}

}  // namespace kalibri::test

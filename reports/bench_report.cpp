// kalibri-bench-report OUT: reads runs, a JSON object a line, from standard input and writes OUT/bench.json and
// OUT/bench.md; the tables also go to standard output. For ci/bench.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "reports/bench_tables.hpp"

namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) throw std::runtime_error(file.string() + ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: kalibri-bench-report OUT < runs.jsonl\n";
    return 2;
  }
  try {
    std::vector<nlohmann::json> runs;
    for (std::string line; std::getline(std::cin, line);) runs.push_back(nlohmann::json::parse(line));
    const nlohmann::ordered_json report = kalibri::reports::bench_report(runs);
    const std::string markdown = kalibri::reports::bench_markdown(report);
    write(std::filesystem::path(argv[1]) / "bench.json", report.dump(1) + "\n");
    write(std::filesystem::path(argv[1]) / "bench.md", markdown);
    std::cout << markdown;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "kalibri-bench-report: " << error.what() << '\n';
    return 2;
  }
}

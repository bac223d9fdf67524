#include "reference/training/batches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reference/error.hpp"

namespace kalibri::reference::training {

std::vector<Ids> read_ids(const std::filesystem::path& file, std::int64_t vocab_size) {
  std::ifstream stream(file);
  if (!stream) throw Error(fmt::format("{}: cannot be read", file.string()));
  std::vector<Ids> documents;
  std::size_t n_lines = 0;
  for (std::string line; std::getline(stream, line);) {
    ++n_lines;
    const auto place = [&] { return fmt::format("{}: line {}", file.string(), n_lines); };
    try {
      documents.push_back(nlohmann::json::parse(line).at("ids").get<Ids>());
    } catch (const nlohmann::json::exception& error) {
      throw Error(fmt::format("{}: expected {{\"ids\": [...]}}, as kalibri tokenize --jsonl writes it: {}", place(),
                              error.what()));
    }
    for (const std::int32_t id : documents.back()) {
      if (id < 0 || id >= vocab_size)
        throw Error(fmt::format("{}: id {} is not below vocab_size {}", place(), id, vocab_size));
    }
  }
  std::erase_if(documents, [](const Ids& ids) { return ids.size() < 2; });
  if (documents.empty()) throw Error(fmt::format("{}: no document has two tokens", file.string()));
  return documents;
}

Batch pack(const std::vector<Ids>& documents, std::size_t& next, std::int64_t n_rows, std::int64_t n_tokens,
           std::int64_t alignment) {
  const auto n = static_cast<std::size_t>(n_rows * n_tokens);
  Batch batch{n_rows, n_tokens, std::vector<std::int64_t>(n, 0), std::vector<std::int32_t>(n, -1),
              std::vector<std::int64_t>(n, -100)};
  for (std::int64_t row = 0; row < n_rows; ++row) {
    std::int64_t begin = 0;
    for (std::int32_t number = 0; begin < n_tokens; ++number) {
      const Ids& ids = documents[next % documents.size()];
      const std::int64_t length = std::min(static_cast<std::int64_t>(ids.size()), n_tokens);
      if (begin + length > n_tokens) break;  // it begins the next row
      ++next;
      for (std::int64_t t = 0; t < length; ++t) {
        const auto place = static_cast<std::size_t>(row * n_tokens + begin + t);
        batch.ids[place] = ids[static_cast<std::size_t>(t)];
        batch.documents[place] = number;
        if (t + 1 < length) batch.targets[place] = ids[static_cast<std::size_t>(t + 1)];
      }
      begin += (length + alignment - 1) / alignment * alignment;
    }
  }
  return batch;
}

}  // namespace kalibri::reference::training

#include "engine/cli/checkpoint_tokenizer.hpp"

#include <fmt/format.h>

#include <ostream>

#include "engine/base/error.hpp"

namespace kalibri::cli {

text::Tokenizer load_tokenizer(const std::filesystem::path& checkpoint, const model::ModelInfo& info,
                               const std::string& otherwise, std::ostream* notes) {
  const std::filesystem::path file = checkpoint / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw Error(ErrorCode::file,
                fmt::format("{}: is not there, and texts become ids by the checkpoint's own tokenizer: put the one it "
                            "was published with there{}",
                            file.string(), otherwise));
  }
  auto tokenizer = text::Tokenizer::load(file);
  if (tokenizer.n_ids() > info.vocab_size) {
    throw Error(ErrorCode::config,
                fmt::format("{}: ids up to {}, expected at most {} (config.json vocab_size): it belongs to another "
                            "checkpoint; put the right one there{}",
                            file.string(), tokenizer.n_ids() - 1, info.vocab_size - 1, otherwise));
  }
  if (notes != nullptr) {
    for (const std::string& note : tokenizer.notes()) *notes << "kalibri: " << note << '\n';
  }
  return tokenizer;
}

}  // namespace kalibri::cli

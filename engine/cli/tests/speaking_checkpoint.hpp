// A made checkpoint that can read and write text: random weights, and a tokenizer with a few merges. What it says is
// noise, the same on every machine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "fixtures/corpus/bpe_trainer.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::cli::test {

class SpeakingCheckpoint {
 public:
  static constexpr std::int64_t kVocabSize = 320;  // the last ones are padding

  explicit SpeakingCheckpoint(fixtures::Family family, std::int64_t max_positions = 4096) {
    if (family == fixtures::Family::kolibri1) {
      fixtures::Kolibri1Shape shape = fixtures::kolibri1_tiny();
      shape.vocab_size = kVocabSize;
      shape.max_position_embeddings = max_positions;
      fixtures::make_kolibri1(folder_.path() / "model", shape, {});
    } else {
      fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
      shape.vocab_size = kVocabSize;
      shape.max_position_embeddings = max_positions;
      fixtures::make_qwen4_exp(folder_.path() / "model", shape, {});
    }
    fixtures::PieceCounts pieces(family);
    pieces.add("Der Kolibri steht in der Luft, der Leuchtturm steht am Meer, und der Wind geht.");
    for (int i = 0; i < 10; ++i) pieces.add("aabaabaabaab");  // so that "aa" is a token
    const auto tokenizer =
        nlohmann::json::parse(fixtures::tokenizer_json(family, fixtures::train_merges(pieces.counts(), 30)));
    write("tokenizer.json", tokenizer.dump());
    for (const auto& token : tokenizer.at("added_tokens")) {
      if (token.at("content") == "<|im_end|>") im_end_ = token.at("id");
      n_ids_ = token.at("id").get<std::int64_t>() + 1;
    }
    write("generation_config.json", nlohmann::json{{"eos_token_id", im_end_}, {"temperature", 0.9}}.dump());
  }

  void write(const std::string& name, const std::string& text) const {
    fixtures::write_file(folder_.path() / "model" / name, text);
  }
  [[nodiscard]] std::string directory() const { return (folder_.path() / "model").string(); }
  [[nodiscard]] std::int32_t im_end() const { return im_end_; }
  [[nodiscard]] std::int64_t n_ids() const { return n_ids_; }

 private:
  fixtures::TempDirectory folder_;
  std::int32_t im_end_ = 0;
  std::int64_t n_ids_ = 0;
};

}  // namespace kalibri::cli::test

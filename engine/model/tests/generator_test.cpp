// The token loop: greedy answers as golden, prefixes that are not read twice, and every way in which an answer ends.
#include "engine/model/generator.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/generator.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"

namespace kalibri::model {
namespace {

using Catch::Matchers::ContainsSubstring;
using test::LoadedModel;
using Ids = std::vector<std::int32_t>;
using PromptState = Generator::PromptState;

Ids golden_ids(const std::filesystem::path& set, const std::string& tensor) {
  const std::vector<std::int64_t> ids = fixtures::read_safetensors(set / "golden.safetensors").at(tensor).integers();
  return {ids.begin(), ids.end()};
}

Ids joined(const Ids& a, const Ids& b) {
  Ids ids = a;
  ids.insert(ids.end(), b.begin(), b.end());
  return ids;
}

/// What a run gave, with the logits that each id was taken from.
struct Answer {
  Generated generated;
  std::vector<float> logits;

  [[nodiscard]] bool is_same_as(const Answer& other) const {
    return generated.ids == other.generated.ids && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

Answer run(Generator& generator, const Ids& prompt, const GenerateOptions& options) {
  Answer answer;
  answer.generated = generator.run(prompt, options, {.token = [&](std::int32_t, std::span<const float> logits) {
                                     answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
                                     return true;
                                   }});
  return answer;
}

Answer run_cold(const Model& model, const Ids& prompt, const GenerateOptions& options) {
  ThreadPool pool(1);
  Generator generator(model, pool, {.max_tokens = 400, .chunk = 512}, PromptState::forgotten);
  return run(generator, prompt, options);
}

/// A golden set of each family.
constexpr const char* kSets[] = {"kolibri1-k1-fp8", "kolibri1-k2", "qwen4-exp-t1-fp8", "qwen4-exp-t2"};

TEST_CASE("greedy answers are the golden ones in both precisions and any chunk") {
  for (const char* set : {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8", "qwen4-exp-t1-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const bool is_kolibri = std::string(set).starts_with("kolibri");
    const Ids expected = golden_ids(*directory, is_kolibri ? "greedy_ids" : "greedy.ids");
    Ids prompt = golden_ids(*directory, "input_ids");
    if (!is_kolibri) {
      prompt.resize(nlohmann::json::parse(fixtures::read_file(*directory / "meta.json")).at("prompt_len"));
    }
    for (const auto& [precision, chunk] : {std::pair{"exact", 5}, {"native", 512}}) {
      INFO(set << ", " << precision);
      const LoadedModel loaded(*directory, precision);
      ThreadPool pool(2);
      Generator generator(loaded.model, pool, {.max_tokens = 400, .chunk = chunk}, PromptState::forgotten);
      const auto n = static_cast<std::int64_t>(expected.size());
      const Generated generated = generator.run(prompt, {.max_tokens = n, .sampling = {.temperature = 0}});
      CHECK(generated.ids == expected);
      CHECK(generated.reason == EndReason::max_tokens);
      CHECK(generated.n_reused == 0);
      CHECK(generated.n_prefilled == static_cast<std::int64_t>(prompt.size()));
    }
  }
}

TEST_CASE("a prompt that goes on, repeats, or leaves the last one gives a cold run's bits and reads only what is new") {
  for (const char* set : kSets) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    INFO(set);
    const LoadedModel loaded(*directory, "native");
    ThreadPool pool(2);
    Generator generator(loaded.model, pool, {.max_tokens = 400, .chunk = 16}, PromptState::kept);
    const GenerateOptions options = {.max_tokens = 5, .sampling = {.seed = 3}};
    const auto turn = [&](const Ids& prompt, std::size_t n_reused) {
      const Answer answer = run(generator, prompt, options);
      CHECK(answer.is_same_as(run_cold(loaded.model, prompt, options)));
      CHECK(answer.generated.n_reused == static_cast<std::int64_t>(n_reused));
      CHECK(answer.generated.n_prefilled == static_cast<std::int64_t>(prompt.size() - n_reused));
      return joined(prompt, answer.generated.ids);
    };
    Ids first = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6};
    first = joined(first, first);
    const Ids told = turn(first, 0);
    turn(joined(told, {7, 7}), told.size() - 1);  // the last id of an answer has not gone through the model
    turn(joined(told, {7, 7}), told.size() + 2);  // the same once more
    Ids other = joined(told, {7, 7});
    other = turn(joined(other, {11, 12, 13}), other.size());      // another answer after the same prompt
    turn(Ids(other.begin(), other.end() - 1), other.size() - 1);  // exactly what is held, its logits included
    turn(Ids(first.begin(), first.end()), 0);                     // goes back before the last prompt's end
    turn(joined(first, {1}), first.size());
    Ids changed = first;
    changed[3] = 2;
    turn(changed, 0);
    turn({5}, 0);
    turn({5}, 1);
  }
}

TEST_CASE("any order of prompts gives what cold runs give") {
  for (const char* set : kSets) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const LoadedModel loaded(*directory, "native");
    ThreadPool pool(2);
    std::uint64_t n = 0;
    const auto below = [&](std::size_t end) { return static_cast<std::size_t>(fixtures::random_word(11, n++) % end); };
    for (const PromptState prompt_state : {PromptState::kept, PromptState::forgotten}) {
      Generator generator(loaded.model, pool, {.max_tokens = 400, .chunk = 7}, prompt_state);
      Ids text = {1, 2, 3};
      std::int64_t n_reused = 0;
      for (int i = 0; i < 10; ++i) {
        INFO(set << ", turn " << i);
        const std::size_t n_cut = below(4) * below(5);
        text.resize(text.size() > 60 ? 3 : text.size() - std::min(text.size() - 1, n_cut));
        while (below(4) != 0) text.push_back(static_cast<std::int32_t>(below(150)));
        GenerateOptions options = {.max_tokens = static_cast<std::int64_t>(1 + below(6)), .sampling = {.seed = n}};
        options.n_kept = static_cast<std::int64_t>(below(text.size() + 1));
        const Answer answer = run(generator, text, options);
        REQUIRE(answer.is_same_as(run_cold(loaded.model, text, options)));
        n_reused += answer.generated.n_reused;
        text = joined(text, answer.generated.ids);
      }
      CHECK(n_reused > 30);
    }
  }
}

TEST_CASE("the state may be kept within a prompt: what differs behind that place goes on from it") {
  for (const char* set : kSets) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const LoadedModel loaded(*directory, "native");
    ThreadPool pool(2);
    Generator generator(loaded.model, pool, {.max_tokens = 400, .chunk = 16}, PromptState::kept);
    GenerateOptions options = {.max_tokens = 3, .n_kept = 20, .sampling = {.seed = 3}};
    const auto turn = [&](const Ids& prompt, std::int64_t n_reused) {
      INFO(set);
      const Answer answer = run(generator, prompt, options);
      CHECK(answer.is_same_as(run_cold(loaded.model, prompt, options)));
      CHECK(answer.generated.n_reused == n_reused);
    };
    Ids prompt;
    for (std::int32_t i = 0; i < 30; ++i) prompt.push_back(7 * i % 100);
    turn(prompt, 0);
    turn(prompt, 30);  // its end is kept too
    prompt[25] = 1;
    turn(prompt, 20);
    prompt.resize(20);
    turn(prompt, 0);  // held, but not the logits after it
    turn(prompt, 20);
    options.n_kept = 10;
    prompt[15] = 1;
    turn(prompt, 0);
    prompt[19] = 1;
    turn(prompt, 10);
    prompt[9] = 1;
    turn(prompt, 0);
    options.n_kept = 21;
    CHECK_THROWS_WITH(generator.run(prompt, options), ContainsSubstring("n_kept"));
  }
}

TEST_CASE("a prompt that goes on by a few tokens has a cold run's bits at every awkward length") {
  for (const char* set : kSets) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const LoadedModel loaded(*directory, "native");
    ThreadPool pool(2);
    const GenerateOptions options = {.max_tokens = 2, .sampling = {.temperature = 0}};
    // Around the convolutions' histories, the windows (7, 33), blocks of 4, the sparse budget (12) and the chunk.
    for (const std::size_t n :
         std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 34, 35}) {
      Generator generator(loaded.model, pool, {.max_tokens = 100, .chunk = 16}, PromptState::kept);
      Ids prompt;
      for (std::size_t i = 0; i < n; ++i) prompt.push_back(static_cast<std::int32_t>(11 * i * i % 150));
      CHECK(run(generator, prompt, options).is_same_as(run_cold(loaded.model, prompt, options)));
      for (const std::size_t n_more : std::vector<std::size_t>{0, 1, 2, 4, 5}) {
        Ids longer = prompt;
        for (std::size_t i = 0; i < n_more; ++i) longer.push_back(static_cast<std::int32_t>(100 + 10 * n_more + i));
        INFO(set << ": " << n << " tokens and " << n_more << " more");
        const Answer answer = run(generator, longer, options);
        CHECK(answer.is_same_as(run_cold(loaded.model, longer, options)));
        CHECK(answer.generated.n_reused >= static_cast<std::int64_t>(n));  // more where the answer began like that
        generator.run(prompt, options);  // back to the prompt's end
      }
    }
  }
}

struct Loaded {
  std::optional<LoadedModel> loaded;
  Ids prompt;
  Ids answer;  // greedy, 16 ids
};

Loaded load_k1() {
  Loaded k1;
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory.has_value()) return k1;
  k1.loaded.emplace(*directory, "native");
  k1.prompt = golden_ids(*directory, "input_ids");
  k1.answer = golden_ids(*directory, "greedy_ids");
  return k1;
}

GenerateOptions greedy(std::int64_t max_tokens) { return {.max_tokens = max_tokens, .sampling = {.temperature = 0}}; }

TEST_CASE("an answer ends at a stop id, when the caller says so, at its longest, and where the session is full") {
  const Loaded k1 = load_k1();
  if (!k1.loaded) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const Ids& expected = k1.answer;
  ThreadPool pool(1);
  Generator generator(k1.loaded->model, pool, {.max_tokens = 40}, PromptState::kept);
  const auto first_of = [&](std::size_t n) { return Ids(expected.begin(), expected.begin() + static_cast<long>(n)); };

  GenerateOptions with_stop = greedy(16);
  with_stop.stop_ids = {expected[6], -1};
  const auto n_before = static_cast<std::size_t>(std::ranges::find(expected, expected[6]) - expected.begin());
  Ids told;
  const Generated stopped = generator.run(k1.prompt, with_stop, {.token = [&](std::int32_t id, std::span<const float>) {
                                            told.push_back(id);
                                            return true;
                                          }});
  CHECK(stopped.reason == EndReason::stop_id);
  CHECK(stopped.ids == first_of(n_before + 1));
  CHECK(told == first_of(n_before));  // the stop id is no token of the text

  const Generated refused =
      generator.run(k1.prompt, greedy(16), {.token = [](std::int32_t, std::span<const float>) { return false; }});
  CHECK(refused.reason == EndReason::caller);
  CHECK(refused.ids == first_of(1));

  CHECK(generator.run(k1.prompt, greedy(1)).ids == first_of(1));
  const Generated full = generator.run(joined(k1.prompt, first_of(4)), greedy(1000));
  CHECK(full.reason == EndReason::max_tokens);
  CHECK(full.ids == Ids(expected.begin() + 4, expected.end()));  // 24 + 4 + 12 = 40
  CHECK_THROWS_WITH(generator.run(Ids(40, 1), greedy(1)),
                    ContainsSubstring("40 tokens") && ContainsSubstring("at most 40 positions"));
  CHECK_NOTHROW(generator.run(Ids(39, 1), greedy(1)));
}

TEST_CASE("a cancelled call ends before the next chunk or token, and what it read is not read again") {
  const Loaded k1 = load_k1();
  if (!k1.loaded) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  ThreadPool pool(1);
  Generator generator(k1.loaded->model, pool, {.max_tokens = 100, .chunk = 10}, PromptState::kept);
  std::atomic<bool> cancelled = false;
  std::vector<std::int64_t> progress;
  const auto in_prompt = [&](std::int64_t n_held, std::int64_t n_all) {
    CHECK(n_all == 24);
    progress.push_back(n_held);
    cancelled = n_held == 20;
  };
  const Generated none = generator.run(k1.prompt, greedy(5), {.prompt = in_prompt, .cancelled = &cancelled});
  CHECK(none.reason == EndReason::cancelled);
  CHECK(none.ids.empty());
  CHECK(none.n_prefilled == 20);

  // A prompt of exactly these 20: they are held, but not the logits after them.
  cancelled = false;
  const Ids beginning(k1.prompt.begin(), k1.prompt.begin() + 20);
  const Generated short_answer = generator.run(beginning, greedy(1));
  CHECK(short_answer.ids == run_cold(k1.loaded->model, beginning, greedy(1)).generated.ids);
  CHECK(short_answer.n_reused == 0);
  int n_tokens = 0;
  const auto at_third = [&](std::int32_t, std::span<const float>) {
    cancelled = ++n_tokens == 3;
    return true;
  };
  const Generated three =
      generator.run(k1.prompt, greedy(16), {.prompt = in_prompt, .token = at_third, .cancelled = &cancelled});
  CHECK(three.reason == EndReason::cancelled);
  CHECK(three.n_reused == 20);
  CHECK(three.ids == Ids(k1.answer.begin(), k1.answer.begin() + 3));
  CHECK(progress == std::vector<std::int64_t>{10, 20, 24});

  const Generated at_once = generator.run(k1.prompt, greedy(5), {.cancelled = &cancelled});
  CHECK(at_once.ids.empty());
  cancelled = false;
  CHECK(generator.run(k1.prompt, greedy(16)).ids == k1.answer);
}

TEST_CASE("ids that are padding are never taken, and what cannot be run is refused and spoils nothing") {
  const Loaded k1 = load_k1();
  if (!k1.loaded) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  ThreadPool pool(1);
  Generator generator(k1.loaded->model, pool, {.max_tokens = 100, .chunk = 10}, PromptState::kept);
  GenerateOptions options = greedy(16);
  options.n_ids = *std::ranges::max_element(k1.answer);  // the largest of the golden answer is padding now
  const Ids ids = generator.run(k1.prompt, options).ids;
  CHECK(*std::ranges::max_element(ids) < options.n_ids);
  CHECK(ids != k1.answer);
  options.sampling = {.temperature = 2, .logit_bias = {{200, 100.0}, {255, 100.0}}};
  options.n_ids = 200;
  for (const std::int32_t id : generator.run(k1.prompt, options).ids) CHECK(id < 200);

  options.n_ids = 257;
  CHECK_THROWS_WITH(generator.run(k1.prompt, options), ContainsSubstring("257 token ids, but the model has 256"));
  CHECK_THROWS_WITH(generator.run({}, greedy(1)), ContainsSubstring("the prompt is empty"));
  CHECK_THROWS_WITH(generator.run(k1.prompt, greedy(0)), ContainsSubstring("at least one token"));
  CHECK_THROWS_WITH(generator.run(k1.prompt, {.sampling = {.top_p = 2}}), ContainsSubstring("top_p"));
  Ids bad = k1.prompt;
  bad[15] = 256;  // in the second chunk
  CHECK_THROWS_WITH(generator.run(bad, greedy(1)), ContainsSubstring("token id 256"));
  const Generated after = generator.run(k1.prompt, greedy(16));
  CHECK(after.ids == k1.answer);
  CHECK(after.n_reused == 0);  // a session that broke off is not gone on with
}

}  // namespace
}  // namespace kalibri::model

#include "engine/cli/score_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/cli/chat_flags.hpp"
#include "engine/cli/checkpoint_tokenizer.hpp"
#include "engine/cli/thread_count.hpp"
#include "engine/model/generator.hpp"
#include "engine/text/chat/json.hpp"
#include "engine/text/chat/reply_parser.hpp"
#include "engine/text/stop_ids.hpp"
#include "engine/text/tokenizer.hpp"

namespace kalibri::cli {

namespace {

using nlohmann::ordered_json;

struct Line {
  std::string kind, language, text, answer;
  std::vector<chat::Json> tools;
};

/// Sums over the lines of one kind and language.
struct Tally {
  std::int64_t n = 0, n_answers = 0, n_exact = 0, n_replies = 0, n_form = 0, n_calls = 0, n_tokens = 0;
  double nats = 0;

  void operator+=(const Tally& other) {
    n += other.n, n_answers += other.n_answers, n_exact += other.n_exact;
    n_replies += other.n_replies, n_form += other.n_form, n_calls += other.n_calls;
    n_tokens += other.n_tokens, nats += other.nats;
  }
};

struct Reply {
  std::string reasoning, content;
  std::vector<chat::ParsedCall> calls;
};

[[noreturn]] void refuse(const std::string& file, std::int64_t n, const std::string& what) {
  throw Error(ErrorCode::input, fmt::format("{}: line {}: {}", file, n, what));
}

std::string member(const chat::Json& line, const char* name, const std::string& file, std::int64_t n) {
  const chat::Json* value = line.find_value(name);
  if (value == nullptr || !value->is(chat::Json::Kind::string)) refuse(file, n, fmt::format("{}: no string", name));
  return value->text;
}

std::vector<Line> read_lines(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw Error(ErrorCode::file, file + ": cannot be opened; --prompts names a file of JSON lines");
  std::vector<Line> lines;
  std::int64_t n = 0;
  for (std::string text; std::getline(stream, text);) {
    ++n;
    std::string wrong;
    const auto json = chat::parse_json(text, &wrong);
    if (!json || !json->is(chat::Json::Kind::object))
      refuse(file, n, "no JSON object" + (wrong.empty() ? "" : ": " + wrong));
    const auto get = [&](const char* name) { return member(*json, name, file, n); };
    Line line{get("kind"), get("language"), get("text"), get("answer"), {}};
    if (const chat::Json* tools = json->find_value("tools")) {
      if (!tools->is(chat::Json::Kind::array)) refuse(file, n, "tools: no array");
      line.tools = tools->items;
    }
    lines.push_back(std::move(line));
  }
  if (lines.empty()) throw Error(ErrorCode::input, file + ": has no lines");
  return lines;
}

/// Whether the prompt leaves its thinking open.
chat::ReplyStart start_of(std::string_view prompt) {
  const std::size_t open = prompt.rfind("<think>");
  const std::size_t close = prompt.rfind("</think>");
  const bool is_open = open != prompt.npos && (close == prompt.npos || close < open);
  return is_open ? chat::ReplyStart::reasoning : chat::ReplyStart::anywhere;
}

Reply parse(const Line& line, chat::ReplyFormat format, std::string_view text) {
  chat::ReplyParser parser(format, start_of(line.text), line.tools);
  Reply reply;
  for (const chat::ReplyDelta& delta : {parser.feed(text), parser.finish()}) {
    reply.reasoning += delta.reasoning;
    reply.content += delta.content;
    reply.calls.insert(reply.calls.end(), delta.tool_calls.begin(), delta.tool_calls.end());
  }
  return reply;
}

bool same_form(const Reply& a, const Reply& b) {
  return a.reasoning.empty() == b.reasoning.empty() && a.content.empty() == b.content.empty() &&
         a.calls.size() == b.calls.size();
}

bool same_calls(const Reply& a, const Reply& b) {
  return std::equal(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(), [](const auto& x, const auto& y) {
    const auto ours = chat::parse_json(x.arguments), theirs = chat::parse_json(y.arguments);
    return x.name == y.name && ours && theirs && chat::equal(*ours, *theirs);
  });
}

class Scorer {
 public:
  Scorer(const ScoreOptions& options, std::ostream& notes)
      : checkpoint_(checkpoint::Checkpoint::open(options.directory)),
        model_(checkpoint_, runtime::Precision::parse(options.precision), expert_cache(options.expert_cache)),
        tokenizer_(load_tokenizer(options.directory, model_.info(), "", nullptr)),
        stop_ids_(text::stop_ids(options.directory, tokenizer_)),
        pool_(thread_count(options.n_threads)) {
    tell_expert_cache(model_, notes);
  }

  void add(const Line& line, Tally& tally) {
    const std::vector<std::int32_t> prompt = tokenizer_.encode(line.text);
    const std::vector<std::int32_t> whole = tokenizer_.encode(line.text + line.answer);
    if (whole.size() < 2 || prompt.empty() || whole.size() < prompt.size() ||
        !std::equal(prompt.begin(), prompt.end(), whole.begin())) {
      throw Error(ErrorCode::input,
                  "text: expected tokens (two at least with the answer) that begin those of text and answer together");
    }
    ++tally.n;
    const bool is_exact = judge_tokens(whole, prompt.size(), tally);
    if (line.answer.empty()) return;
    ++tally.n_answers;
    if (is_exact) ++tally.n_exact;
    if (line.kind == "chat" || line.kind == "tool") judge_reply(line, prompt, whole.size(), tally);
  }

 private:
  /// Whether each token of the answer is the most likely one after the true ones before it: then greedy decoding gives
  /// that answer.
  bool judge_tokens(const std::vector<std::int32_t>& ids, std::size_t n_prompt, Tally& tally) {
    model::Session session(model_, pool_, {static_cast<std::int64_t>(ids.size())});
    const auto vocab_size = static_cast<std::size_t>(model_.info().vocab_size);
    const auto n_ids = static_cast<std::size_t>(tokenizer_.n_ids());  // the rows above are padding
    std::vector<float> logits;
    bool is_exact = true;
    for (std::size_t begin = 0; begin < ids.size(); begin += kRows) {
      const std::size_t n = std::min(kRows, ids.size() - begin);
      logits.resize(n * vocab_size);
      session.forward(std::span(ids).subspan(begin, n), logits);
      for (std::size_t t = begin; t < begin + n && t + 1 < ids.size(); ++t) {
        const std::span<const float> row = std::span(logits).subspan((t - begin) * vocab_size, n_ids);
        const auto best = std::max_element(row.begin(), row.end());
        const auto target = static_cast<std::size_t>(ids[t + 1]);
        double sum = 0;
        for (const float value : row) sum += std::exp(static_cast<double>(value) - static_cast<double>(*best));
        tally.nats += std::log(sum) + static_cast<double>(*best) - static_cast<double>(row[target]);
        ++tally.n_tokens;
        if (t + 1 >= n_prompt && best - row.begin() != ids[t + 1]) is_exact = false;
      }
    }
    return is_exact;
  }

  void judge_reply(const Line& line, const std::vector<std::int32_t>& prompt, std::size_t n_whole, Tally& tally) {
    const chat::ReplyFormat format = reply_format(chat_family(model_.info().model_type));
    const auto max_tokens = static_cast<std::int64_t>(2 * (n_whole - prompt.size()) + 16);
    model::Generator generator(model_, pool_, {static_cast<std::int64_t>(prompt.size()) + max_tokens},
                               model::Generator::PromptState::forgotten);
    model::GenerateOptions options{max_tokens, stop_ids_, tokenizer_.n_ids(), {}};
    options.sampling.temperature = 0;
    const model::Generated generated = generator.run(prompt, options);
    const bool has_ended = generated.reason == model::EndReason::stop_id;
    const std::span<const std::int32_t> text(generated.ids.data(), generated.ids.size() - (has_ended ? 1 : 0));
    const Reply ours = parse(line, format, without_stop(line.answer));
    const Reply theirs = parse(line, format, tokenizer_.decode(text, /*skip_special=*/false));
    ++tally.n_replies;
    if (has_ended && same_form(ours, theirs)) ++tally.n_form;
    if (same_calls(ours, theirs)) ++tally.n_calls;
  }

  /// The expected answer up to the token at which generation stops.
  [[nodiscard]] std::string without_stop(const std::string& answer) const {
    std::size_t end = answer.size();
    for (const std::int32_t id : stop_ids_) end = std::min(end, answer.find(tokenizer_.bytes_of(id)));
    return answer.substr(0, end);
  }

  static constexpr std::size_t kRows = 64;  // of logits at a time
  checkpoint::Checkpoint checkpoint_;
  model::Model model_;
  text::Tokenizer tokenizer_;
  std::vector<std::int32_t> stop_ids_;
  ThreadPool pool_;
};

std::optional<double> share(std::int64_t n, std::int64_t of) {
  return of == 0 ? std::nullopt : std::optional(static_cast<double>(n) / static_cast<double>(of));
}

double perplexity(const Tally& tally) { return std::exp(tally.nats / static_cast<double>(tally.n_tokens)); }

ordered_json row_json(const std::string& kind, const std::string& language, const Tally& tally) {
  const auto number = [](std::optional<double> value) { return value ? ordered_json(*value) : ordered_json(); };
  return {{"kind", kind},
          {"language", language},
          {"prompts", tally.n},
          {"exact", number(share(tally.n_exact, tally.n_answers))},
          {"form", number(share(tally.n_form, tally.n_replies))},
          {"calls", number(share(tally.n_calls, tally.n_replies))},
          {"perplexity", perplexity(tally)},
          {"tokens", tally.n_tokens}};
}

std::string row_text(const std::string& kind, const std::string& language, const Tally& tally) {
  const auto percent = [](std::optional<double> value) { return value ? fmt::format("{:.1f} %", 100 * *value) : ""; };
  return fmt::format("{:<8} {:<8} {:>7} {:>8} {:>8} {:>8} {:>10.3f}\n", kind, language, tally.n,
                     percent(share(tally.n_exact, tally.n_answers)), percent(share(tally.n_form, tally.n_replies)),
                     percent(share(tally.n_calls, tally.n_replies)), perplexity(tally));
}

}  // namespace

int score_command(const ScoreOptions& options, std::ostream& out, std::ostream& notes) {
  const std::vector<Line> lines = read_lines(options.prompts);
  Scorer scorer(options, notes);
  std::map<std::pair<std::string, std::string>, Tally> tallies;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    try {
      scorer.add(lines[i], tallies[{lines[i].kind, lines[i].language}]);
    } catch (const Error& error) {
      refuse(options.prompts, static_cast<std::int64_t>(i) + 1, error.what());
    }
  }
  Tally all;
  ordered_json rows = ordered_json::array();
  std::string table = fmt::format("{:<8} {:<8} {:>7} {:>8} {:>8} {:>8} {:>10}\n", "kind", "language", "prompts",
                                  "exact", "form", "calls", "perplexity");
  for (const auto& [key, tally] : tallies) {
    all += tally;
    rows.push_back(row_json(key.first, key.second, tally));
    table += row_text(key.first, key.second, tally);
  }
  rows.push_back(row_json("all", "", all));
  table += row_text("all", "", all);
  out << (options.json ? rows.dump(2) + "\n" : table);
  return 0;
}

}  // namespace kalibri::cli

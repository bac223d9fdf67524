#include "engine/cli/chat_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/cli/interrupt.hpp"
#include "engine/cli/line_reader.hpp"
#include "engine/cli/reply_printer.hpp"

namespace kalibri::cli {

namespace {

constexpr const char* kHelp =
    "/reset  forget the conversation\n"
    "/tool TEXT  answer the model's tool call\n"
    "/quit  end (also Ctrl-D)\n"
    "Ctrl-C stops an answer. // at the beginning of a line stands for /.\n";

/// The conversation so far, as messages and as the ids that the model has read and written.
class Talk {
 public:
  Talk(const ChatOptions& options, Speaker& speaker, chat::Family family)
      : options_(options),
        speaker_(speaker),
        family_(family),
        beginning_(begin_conversation(family, options.chat)),
        request_(beginning_),
        generator_(speaker.start(std::min(options.context, speaker.model().info().max_positions),
                                 model::Generator::PromptState::kept)) {}

  void reset() {
    request_ = beginning_;
    told_text_.clear();
    told_ids_.clear();
  }

  [[nodiscard]] bool awaits_tool() const {
    const auto& messages = request_.conversation.messages;
    return !messages.empty() && !messages.back().tool_calls.empty();
  }

  /// Adds a message and the model's answer to it; neither when it throws.
  Answer answer(const std::string& role, const std::string& text, const Terminal& terminal,
                const std::atomic<bool>& cancelled, std::ostream& out, std::ostream& notes) {
    chat::ChatRequest request = request_;
    request.conversation.messages.push_back({role, {{chat::ContentPart::Kind::text, text}}});
    const chat::Prompt prompt = chat::build_prompt(family_, request);
    Question question = {.ids = encode(prompt.text), .n_answers_before = n_answers_++};
    question.n_kept = n_before_answer(question.ids);
    ReplyPrinter printer(out, terminal.out, make_parser(family_, request, prompt));
    const auto write = [&](std::string_view piece) {
      printer.feed(piece);
      return out.good();
    };
    const Answer answer = speaker_.answer(generator_, question, write, cancelled, terminal.err ? &notes : nullptr);
    request.conversation.messages.push_back(to_message(printer.finish()));
    request_ = std::move(request);
    remember(prompt.text, question.ids, answer.generated);
    return answer;
  }

 private:
  /// What the model itself wrote stays the ids that it wrote, where the template keeps its text: then all of it is in
  /// the state already. Another split of the same text into tokens would have to be read again.
  [[nodiscard]] std::vector<std::int32_t> encode(const std::string& prompt) const {
    const bool goes_on = !told_text_.empty() && prompt.starts_with(told_text_) &&
                         std::string_view(prompt).substr(told_text_.size()).starts_with("<|im_end|>");
    if (!goes_on) return speaker_.tokenizer().encode(prompt);
    std::vector<std::int32_t> ids = told_ids_;
    const auto rest = speaker_.tokenizer().encode(std::string_view(prompt).substr(told_text_.size()));
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }

  /// How many ids come before the answer's turn. Behind them a next prompt may differ: a template may leave an earlier
  /// turn's thinking out, and the opening of the thinking with it.
  [[nodiscard]] std::int64_t n_before_answer(const std::vector<std::int32_t>& ids) const {
    const auto turn_begin = speaker_.tokenizer().id_of("<|im_start|>");
    const auto last = turn_begin ? std::find(ids.rbegin(), ids.rend(), *turn_begin) : ids.rend();
    return last == ids.rend() ? 0 : ids.rend() - last - 1;
  }

  void remember(const std::string& prompt, const std::vector<std::int32_t>& prompt_ids,
                const model::Generated& generated) {
    std::vector<std::int32_t> written = generated.ids;
    if (generated.reason == model::EndReason::stop_id) written.pop_back();
    told_text_ = prompt + speaker_.tokenizer().decode(written, /*skip_special=*/false);
    told_ids_ = prompt_ids;
    told_ids_.insert(told_ids_.end(), written.begin(), written.end());
  }

  static chat::Message to_message(const Reply& reply) {
    chat::Message message{"assistant", {{chat::ContentPart::Kind::text, reply.content}}};
    if (!reply.reasoning.empty()) message.reasoning = message.reasoning_content = reply.reasoning;
    for (const chat::ParsedCall& call : reply.tool_calls) {
      const auto arguments = chat::parse_json(call.arguments, nullptr, chat::kMaxJsonDepth + 2);  // typed: deeper
      if (!arguments || !chat::has_numbers_in_range(*arguments)) {
        throw Error(ErrorCode::input,
                    "the tool call's arguments hold a number that is out of range: a prompt cannot "
                    "repeat it, and this turn is forgotten");
      }
      message.tool_calls.push_back({call.name, *arguments});
    }
    return message;
  }

  const ChatOptions& options_;
  Speaker& speaker_;
  chat::Family family_;
  chat::ChatRequest beginning_;
  chat::ChatRequest request_;
  model::Generator generator_;
  std::string told_text_;
  std::vector<std::int32_t> told_ids_;
  std::uint64_t n_answers_ = 0;
};

/// The loop over lines.
class Chat {
 public:
  Chat(const ChatOptions& options, const Terminal& terminal, int in, std::ostream& out, std::ostream& notes)
      : options_(options),
        terminal_(terminal),
        out_(out),
        notes_(notes),
        speaker_(options.speaker, notes),
        family_(checked_family()),
        talk_(options, speaker_, family_),
        lines_(in, interrupt_.descriptor()) {}

  int run() {
    bool was_interrupted = false;
    if (is_interactive()) out_ << "/help lists what a line may be besides a question.\n";
    while (out_) {
      if (is_interactive()) out_ << "> " << std::flush;
      std::string line;
      const LineReader::Event event = lines_.next(line);
      if (event == LineReader::Event::interrupted) {
        if (was_interrupted || !is_interactive()) return kInterrupted;
        was_interrupted = true;
        interrupt_.clear();
        out_ << "\nCtrl-C once more, or Ctrl-D, ends.\n";
        continue;
      }
      was_interrupted = false;
      if (event == LineReader::Event::end) {
        if (is_interactive()) out_ << '\n';
        return 0;
      }
      if (!take(line)) return interrupt_.flag() ? kInterrupted : 0;
    }
    return 0;
  }

 private:
  [[nodiscard]] bool is_interactive() const { return terminal_.in && terminal_.out; }

  chat::Family checked_family() {
    const chat::Family family = chat_family(speaker_.model().info().model_type);
    check_template(family, options_.speaker.directory, options_.chat, notes_);
    return family;
  }

  /// False: that was the last line.
  bool take(const std::string& line) {
    if (line == "/quit") return false;
    if (line == "/help") {
      out_ << kHelp;
    } else if (line == "/reset") {
      talk_.reset();
    } else if (line.starts_with("/tool ")) {
      if (talk_.awaits_tool()) return answer("tool", line.substr(6));
      complain("/tool: no tool call awaits an answer");
    } else if (line.starts_with("//")) {
      return answer("user", line.substr(1));
    } else if (line.starts_with('/')) {
      complain(fmt::format("'{}' is no command; /help lists them, and // at the beginning stands for /", line));
    } else if (!line.empty()) {
      return answer("user", line);
    }
    return true;
  }

  bool answer(const std::string& role, const std::string& text) {
    try {
      const Answer answer = talk_.answer(role, text, terminal_, interrupt_.flag(), out_, notes_);
      if (options_.speaker.stats) notes_ << stats_line(answer);
      if (answer.end == std::string_view("length")) notes_ << "kalibri: the answer is as long as it may be\n";
    } catch (const Error& error) {
      complain(error.what());
    }
    if (interrupt_.flag() && !is_interactive()) return false;
    interrupt_.clear();
    return true;
  }

  /// Of one line that cannot be answered: a person can type another.
  void complain(const std::string& what) {
    if (!is_interactive()) throw Error(ErrorCode::input, what);
    notes_ << "kalibri: " << for_terminal(what) << '\n';
  }

  const ChatOptions& options_;
  Terminal terminal_;
  std::ostream& out_;
  std::ostream& notes_;
  Speaker speaker_;
  chat::Family family_;
  Talk talk_;
  Interrupt interrupt_;
  LineReader lines_;
};

}  // namespace

int chat_command(const ChatOptions& options, const Terminal& terminal, int in, std::ostream& out, std::ostream& notes) {
  return Chat(options, terminal, in, out, notes).run();
}

}  // namespace kalibri::cli

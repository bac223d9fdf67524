#include "engine/cli/render_chat_command.hpp"

#include <fmt/format.h>

#include <ostream>

#include "engine/base/error.hpp"
#include "engine/cli/jsonl_filter.hpp"
#include "engine/text/chat/json.hpp"
#include "engine/text/chat/render.hpp"
#include "engine/text/chat/request.hpp"

namespace kalibri::cli {

namespace {

std::string member(std::string_view key, std::string_view text) {
  return fmt::format("{{\"{}\": {}}}", key, chat::json_quoted(text));
}

std::string answer_variables(chat::Family family, const chat::Json& variables) {
  try {
    return member("rendered", chat::render(family, chat::read_variables(family, variables)));
  } catch (const Error& error) {
    return member("error", error.what());
  }
}

std::string answer_request(chat::Family family, const chat::Json& request, std::ostream& notes) {
  try {
    return member("rendered", chat::build_prompt(family, chat::read_request(family, request)).text);
  } catch (const chat::RequestError& error) {
    notes << "kalibri: " << error.what() << '\n';
    return member("error_param", error.param());
  }
}

std::string answer(chat::Family family, const std::string& line, std::ostream& notes) {
  std::string wrong;
  const auto json = chat::parse_json(line, &wrong, chat::kMaxJsonDepth + 1);
  if (!json) throw Error(ErrorCode::input, "no valid JSON: " + wrong);
  const chat::Json* variables = json->find("vars");
  const chat::Json* request = json->find("request");
  const chat::Json* given = variables != nullptr ? variables : request;
  if ((variables != nullptr) == (request != nullptr) || !given->is(chat::Json::Kind::object)) {
    throw Error(ErrorCode::input, R"(expected {"vars": {...}} or {"request": {...}})");
  }
  return variables != nullptr ? answer_variables(family, *variables) : answer_request(family, *request, notes);
}

}  // namespace

int render_chat_command(const RenderChatOptions& options, std::istream& in, std::ostream& out, std::ostream& notes) {
  const auto family = chat::find_family(options.model_type);
  if (!family) throw Error(ErrorCode::usage, "render-chat: no model type '" + options.model_type + "'");
  if (!options.jsonl) throw Error(ErrorCode::usage, "render-chat: expected --jsonl and lines on standard input");
  answer_lines(in, out, [&](const std::string& line) { return answer(*family, line, notes); });
  return 0;
}

}  // namespace kalibri::cli

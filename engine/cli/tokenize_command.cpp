#include "engine/cli/tokenize_command.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "engine/base/error.hpp"
#include "engine/cli/jsonl_filter.hpp"
#include "engine/text/base64.hpp"
#include "engine/text/printable.hpp"
#include "engine/text/tokenizer.hpp"

namespace kalibri::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// A line that cannot be answered; its number is added where it is caught.
[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::input, what); }

json parse_request(const std::string& line) {
  std::set<std::string> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 2) refuse("nested deeper than an object with a list");
    if (event == json::parse_event_t::key && !keys.insert(value.get<std::string>()).second) {
      refuse(fmt::format("key '{}' is given twice", text::printable(value.get<std::string>())));
    }
    return true;
  };
  try {
    return json::parse(line, watch);
  } catch (const json::parse_error& error) {
    refuse(fmt::format("no valid JSON (byte {})", error.byte));
  } catch (const json::out_of_range&) {
    refuse("no valid JSON (a number is out of range)");
  }
}

const std::string& string_of(const json& value, const char* key) {
  if (!value.is_string()) refuse(fmt::format("'{}' is no string", key));
  return value.get_ref<const std::string&>();
}

std::vector<std::int32_t> ids_of(const json& list) {
  if (!list.is_array()) refuse("'decode' is no list of ids");
  std::vector<std::int32_t> ids;
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) {
      refuse(fmt::format("decode[{}]: {} is no token id, expected 0 to {}", ids.size(), text::printable(id.dump()),
                         INT32_MAX));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

ordered_json decoded(const text::Tokenizer& tokenizer, const std::vector<std::int32_t>& ids, bool skip_special) {
  std::vector<std::string> stream;
  text::StreamDecoder decoder(tokenizer, skip_special);
  for (const std::int32_t id : ids) stream.push_back(decoder.feed(id));
  stream.push_back(decoder.flush());
  return {{"text", tokenizer.decode(ids, skip_special)}, {"stream", std::move(stream)}};
}

ordered_json answer(const text::Tokenizer& tokenizer, const json& request) {
  const auto has = [&](const char* key) { return request.contains(key) ? std::size_t{1} : std::size_t{0}; };
  const std::size_t n_known = has("text") + has("bytes_b64") + has("decode");
  const std::size_t n_options = has("decode") == 0 ? 0 : has("skip_special");
  if (!request.is_object() || n_known != 1 || request.size() != n_known + n_options) {
    refuse(R"(expected {"text": ...}, {"bytes_b64": ...} or {"decode": [ids], "skip_special": true or false})");
  }
  if (request.contains("text")) {
    return {{"ids", tokenizer.encode(string_of(request["text"], "text"))}};
  }
  if (request.contains("bytes_b64")) {
    const auto bytes = text::decode_base64(string_of(request["bytes_b64"], "bytes_b64"));
    if (!bytes.has_value()) refuse("'bytes_b64' is no base64");
    return {{"ids", tokenizer.encode(*bytes)}};
  }
  const bool has_flag = request.contains("skip_special");
  if (has_flag && !request["skip_special"].is_boolean()) refuse("'skip_special' is neither true nor false");
  return decoded(tokenizer, ids_of(request["decode"]), has_flag && request["skip_special"].get<bool>());
}

}  // namespace

int tokenize_command(const TokenizeOptions& options, std::istream& in, std::ostream& out, std::ostream& notes) {
  if (options.jsonl != options.texts.empty()) {
    throw Error(ErrorCode::usage, "tokenize: expected texts, or --jsonl and lines on standard input");
  }
  const auto tokenizer = text::Tokenizer::load(options.tokenizer);
  for (const std::string& note : tokenizer.notes()) notes << "kalibri: " << note << '\n';
  if (options.jsonl) {
    answer_lines(in, out, [&](const std::string& line) { return answer(tokenizer, parse_request(line)).dump(); });
  } else {
    for (const std::string& text : options.texts) out << fmt::format("{}\n", fmt::join(tokenizer.encode(text), " "));
  }
  return 0;
}

}  // namespace kalibri::cli

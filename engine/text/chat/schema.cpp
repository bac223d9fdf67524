#include "engine/text/chat/schema.hpp"

#include <algorithm>

#include "engine/text/chat/strip.hpp"

namespace kalibri::chat {

namespace {

using Kind = Json::Kind;

constexpr int kMaxHops = 16;      // from $ref to $ref, which can lead in circles
constexpr int kMaxSchemas = 256;  // looked at for one parameter: so can anyOf and allOf

struct Type {
  std::string_view name;         // JSON schema's, or "enum"
  const Json* listed = nullptr;  // the values of an enum
};

/// The target of "#/a/b"; nullptr when it leads nowhere or out of the schema.
const Json* follow(const Json& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  const Json* target = &root;
  for (reference.remove_prefix(1); target != nullptr && !reference.empty();) {
    if (reference.front() != '/') return nullptr;
    const std::size_t end = std::min(reference.find('/', 1), reference.size());
    std::string key(reference.substr(1, end - 1));
    for (const auto& [escape, meaning] : {std::pair{"~1", "/"}, {"~0", "~"}}) {  // JSON pointer (RFC 6901), this order
      for (std::size_t at = 0; (at = key.find(escape, at)) != std::string::npos; ++at) key.replace(at, 2, meaning);
    }
    target = target->find(key);
    reference.remove_prefix(end);
  }
  return target;
}

const Json* resolve(const Json& root, const Json* schema) {
  for (int n_hops = 0; schema != nullptr && n_hops < kMaxHops; ++n_hops) {
    const Json* reference = schema->find("$ref");
    if (reference == nullptr || !reference->is(Kind::string)) return schema;
    schema = follow(root, reference->text);
  }
  return nullptr;
}

const Json* find_array(const Json& schema, std::string_view key) {
  const Json* value = schema.find(key);
  return value != nullptr && value->is(Kind::array) ? value : nullptr;
}

void collect_types(const Json& root, const Json* schema, int& n_left, std::vector<Type>& types) {
  schema = resolve(root, schema);
  if (schema == nullptr || n_left == 0) return;
  --n_left;
  const Json* type = schema->find("type");
  const Json* choices = find_array(*schema, "anyOf");
  if (choices == nullptr) choices = find_array(*schema, "oneOf");
  const Json* all_of = find_array(*schema, "allOf");
  const Json* listed = find_array(*schema, "enum");
  if (type != nullptr && type->is(Kind::string)) {
    types.push_back({type->text});
  } else if (type != nullptr && type->is(Kind::array)) {
    for (const Json& one : type->items) {
      if (one.is(Kind::string)) types.push_back({one.text});
    }
  } else if (choices != nullptr) {
    for (const Json& choice : choices->items) collect_types(root, &choice, n_left, types);
  } else if (all_of != nullptr && all_of->items.size() == 1) {
    collect_types(root, &all_of->items.front(), n_left, types);
  } else if (listed != nullptr) {
    types.push_back({"enum", listed});
  }
  const Json* nullable = schema->find("nullable");
  if (nullable != nullptr && nullable->is(Kind::boolean) && nullable->boolean) types.push_back({"null"});
}

bool lists(const Type& type, Kind kind) {
  return type.listed != nullptr && std::ranges::any_of(type.listed->items, [&](const Json& v) { return v.is(kind); });
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower,
                            [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

bool means_null(std::string_view text, const std::vector<Type>& types) {
  if (!equals_ignoring_case(text, "null") && !equals_ignoring_case(text, "none")) return false;
  const auto has_null = [](const Type& type) { return type.name == "null" || lists(type, Kind::null); };
  const auto has_string = [](const Type& type) { return type.name == "string" || lists(type, Kind::string); };
  return std::ranges::any_of(types, has_null) || (!types.empty() && std::ranges::none_of(types, has_string));
}

/// "7" of "7" and of "7.0"; nothing for anything else.
std::optional<std::string> as_integer(std::string_view text) {
  const std::optional<Json> value = parse_json(text);
  if (!value || !value->is(Kind::number) || text.find_first_of("eE") != std::string_view::npos) return std::nullopt;
  const std::size_t point = std::min(text.find('.'), text.size());
  if (text.find_first_not_of("0", point + (point < text.size() ? 1 : 0)) != std::string_view::npos) return std::nullopt;
  return std::string(text.substr(0, point));
}

std::optional<std::string> as_json(std::string_view text, Kind kind) {
  const std::optional<Json> value = parse_json(text);
  if (!value || !value->is(kind) || (kind == Kind::number && !has_numbers_in_range(*value))) return std::nullopt;
  return std::string(text);
}

std::optional<std::string> as_listed(std::string_view value, std::string_view text, const Json& listed) {
  for (const std::string_view candidate : {value, text}) {
    for (const Json& one : listed.items) {
      if (one.is(Kind::string) && one.text == candidate) return json_quoted(candidate);
    }
  }
  const std::optional<Json> json = parse_json(text);
  const bool is_listed = json && std::ranges::any_of(listed.items, [&](const Json& one) { return equal(one, *json); });
  return is_listed ? std::optional(std::string(text)) : std::nullopt;
}

std::optional<std::string> fit(std::string_view value, std::string_view text, const Type& type) {
  if (type.name == "string") return json_quoted(value);
  if (type.name == "integer") return as_integer(text);
  if (type.name == "number") return as_json(text, Kind::number);
  if (type.name == "array") return as_json(text, Kind::array);
  if (type.name == "object") return as_json(text, Kind::object);
  if (type.listed != nullptr) return as_listed(value, text, *type.listed);
  if (type.name == "boolean") {
    for (const char* word : {"true", "false"}) {
      if (equals_ignoring_case(text, word)) return word;
    }
  }
  return std::nullopt;
}

}  // namespace

const Json* find_parameters(const std::vector<Json>& tools, std::string_view name) {
  for (const Json& tool : tools) {
    const Json* function = tool.find("function");
    const Json& named = function == nullptr ? tool : *function;
    const Json* own_name = named.find("name");
    if (own_name != nullptr && own_name->is(Kind::string) && own_name->text == name) return named.find("parameters");
  }
  return nullptr;
}

const Json* find_parameter(const Json* parameters, std::string_view key) {
  if (parameters == nullptr) return nullptr;
  const Json* root = resolve(*parameters, parameters);
  const Json* properties = root == nullptr ? nullptr : root->find("properties");
  return properties == nullptr ? nullptr : properties->find(key);
}

std::string typed_value(std::string_view value, const Json* parameters, std::string_view key) {
  std::vector<Type> types;
  int n_left = kMaxSchemas;
  if (const Json* schema = find_parameter(parameters, key)) collect_types(*parameters, schema, n_left, types);
  const std::string_view text = strip(value);
  if (means_null(text, types)) return "null";
  for (const Type& type : types) {
    if (const std::optional<std::string> json = fit(value, text, type)) return *json;
  }
  return json_quoted(value);
}

}  // namespace kalibri::chat

// Which template a checkpoint has, and whether it is the known one.
#include "engine/text/chat/known_template.hpp"

#include "engine/base/error.hpp"
#include "engine/base/sha256.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::chat {
namespace {

using Catch::Matchers::ContainsSubstring;

/// A directory with these two files; a file whose text is empty is not there.
struct Directory {
  Directory(const std::string& jinja, const std::string& config) {
    if (!jinja.empty()) fixtures::write_file(folder.path() / "chat_template.jinja", jinja);
    if (!config.empty()) fixtures::write_file(folder.path() / "tokenizer_config.json", config);
  }
  fixtures::TempDirectory folder;
};

std::optional<std::string> find(const std::string& jinja, const std::string& config) {
  return find_template(Directory(jinja, config).folder.path());
}

TEST_CASE("the template is that of its own file or else of tokenizer_config.json") {
  CHECK(find("{{ a }}\n", R"({"chat_template": "b"})") == "{{ a }}\n");
  CHECK(find("", R"({"chat_template": "b\n"})") == "b\n");
  CHECK(
      find("", R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})") ==
      "d");
  CHECK_FALSE(find("", R"({"chat_template": null, "eos_token": "x"})"));
  CHECK_FALSE(find("", ""));
  CHECK_THROWS_WITH(find("", R"({"chat_template": 3})"), ContainsSubstring("tokenizer_config.json: chat_template"));
  CHECK_THROWS_WITH(find("", R"({"chat_template": [{"name": "x", "template": "t"}]})"),
                    ContainsSubstring("named default"));
  CHECK_THROWS_WITH(find("", "{"), ContainsSubstring("tokenizer_config.json: no valid JSON"));
  CHECK_THROWS_AS(find("", "{"), Error);
}

TEST_CASE("a template that differs in one byte is told with both digests, the same one and none are not") {
  const Directory directory("{{ a }}", "");
  const Directory other("{{ a }}\n", "");
  const std::string digest = sha256("{{ a }}");
  CHECK_FALSE(template_difference(directory.folder.path(), digest));
  CHECK_FALSE(template_difference(Directory("", "{}").folder.path(), digest));
  const auto difference = template_difference(other.folder.path(), digest);
  REQUIRE(difference);
  CHECK_THAT(*difference, ContainsSubstring(digest) && ContainsSubstring(sha256("{{ a }}\n")));
}

TEST_CASE("the known digests are the two published ones") {
  CHECK_THAT(known_template_sha256(Family::kolibri1), Catch::Matchers::StartsWith("9ba35d4b"));
  CHECK_THAT(known_template_sha256(Family::qwen4_exp), Catch::Matchers::StartsWith("c3cf9e34"));
  for (const Family family : {Family::kolibri1, Family::qwen4_exp}) {
    CHECK(template_difference(Directory("{{ a }}", "").folder.path(), known_template_sha256(family)));
    CHECK(known_template_sha256(family).size() == 64);
  }
}

}  // namespace
}  // namespace kalibri::chat

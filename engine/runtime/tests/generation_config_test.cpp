// What generation_config.json recommends, and what it may not say.
#include "engine/runtime/generation_config.hpp"

#include "engine/base/error.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::runtime {
namespace {

SamplingOptions recommended(const std::string& text) {
  const fixtures::TempDirectory directory;
  fixtures::write_file(directory.path() / "generation_config.json", text);
  return recommended_sampling(directory.path());
}

TEST_CASE("sampling is as generation_config.json recommends and what it leaves open is off") {
  const SamplingOptions released = recommended(
      R"({"do_sample": true, "eos_token_id": [1, 2], "temperature": 0.7, "top_k": 128, "top_p": 0.97, "other": {}})");
  CHECK(released.temperature == 0.7);
  CHECK(released.top_k == 128);
  CHECK(released.top_p == 0.97);
  CHECK(released.min_p == 0);
  CHECK(released.repetition_penalty == 1);

  const SamplingOptions rest = recommended(R"({"min_p": 0.05, "repetition_penalty": 1.1, "top_k": -1, "top_p": null})");
  CHECK(rest.temperature == 1);
  CHECK(rest.top_k == 0);
  CHECK(rest.top_p == 1);
  CHECK(rest.min_p == 0.05);
  CHECK(rest.repetition_penalty == 1.1);

  CHECK(recommended(R"({"do_sample": false, "temperature": 0.7})").temperature == 0);
  CHECK(recommended_sampling(fixtures::TempDirectory().path()).temperature == 1);
}

TEST_CASE("a generation_config.json that is damaged or absurd is refused with its name and the member's") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"({"temperature": "hot"})", "generation_config.json: temperature: found \"hot\", expected a number"},
      {R"({"temperature": -1})", "generation_config.json: temperature: found -1"},
      {R"({"temperature": 1e300})", "generation_config.json: temperature"},
      {R"({"top_k": 1.5})", "generation_config.json: top_k: found 1.5"},
      {R"({"top_k": "128"})", "generation_config.json: top_k"},
      {R"({"top_k": -2})", "generation_config.json: top_k"},
      {R"({"top_k": 99999999999999999999})", "generation_config.json: top_k"},
      {R"({"top_k": 18446744073709551615})", "generation_config.json: top_k"},
      {R"({"top_p": 2})", "generation_config.json: top_p"},
      {R"({"top_p": [0.9]})", "generation_config.json: top_p: found [0.9]"},
      {R"({"min_p": -0.5})", "generation_config.json: min_p"},
      {R"({"repetition_penalty": 0})", "generation_config.json: repetition_penalty"},
      {R"({"do_sample": 1})", "generation_config.json: do_sample: found 1, expected true or false"},
      {R"({"do_sample": false, "temperature": 7})", "generation_config.json: temperature"},
      {R"({"temperature": 1, "temperature": 0})", "generation_config.json: key 'temperature' is given twice"},
      {R"({"temperature": 1e999})", "generation_config.json: a number is out of range"},
      {"[]", "generation_config.json: no JSON object"},
      {"", "generation_config.json: no valid JSON"},
      {std::string(100, '['), "generation_config.json: nested deeper"},
      {R"({"top_p": ")" + std::string(1000, 'x') + "\"}", "xxx..."},
  };
  for (const auto& [text, what] : bad) {
    CAPTURE(text);
    CHECK_THROWS_WITH(recommended(text), Catch::Matchers::ContainsSubstring(what));
    CHECK_THROWS_AS(recommended(text), Error);
  }
}

}  // namespace
}  // namespace kalibri::runtime

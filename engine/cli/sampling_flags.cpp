#include "engine/cli/sampling_flags.hpp"

#include <fmt/format.h>

#include <charconv>
#include <random>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

std::pair<std::int32_t, double> parse_bias(const std::string& text) {
  std::pair<std::int32_t, double> bias;
  const char* end = text.data() + text.size();
  const auto id = std::from_chars(text.data(), end, bias.first);
  if (id.ec == std::errc() && id.ptr != end && *id.ptr == '=') {
    const auto value = std::from_chars(id.ptr + 1, end, bias.second);
    if (value.ec == std::errc() && value.ptr == end) return bias;
  }
  throw Error(ErrorCode::usage, fmt::format("--logit-bias: '{}', expected ID=VALUE, for example 13=-100", text));
}

std::uint64_t random_seed() {
  std::random_device device;  // 32 bits a call; fewer than 63, so that the seed can be given to --seed again
  return (std::uint64_t{device()} << 31) ^ device();
}

}  // namespace

runtime::SamplingOptions sampling_options(const SamplingFlags& flags, runtime::SamplingOptions recommended,
                                          std::int64_t vocab_size) {
  runtime::SamplingOptions options = std::move(recommended);
  options.temperature = flags.temperature.value_or(options.temperature);
  options.top_k = flags.top_k.value_or(options.top_k);
  if (options.top_k == -1) options.top_k = 0;
  options.top_p = flags.top_p.value_or(options.top_p);
  options.min_p = flags.min_p.value_or(options.min_p);
  options.repetition_penalty = flags.repetition_penalty.value_or(options.repetition_penalty);
  options.presence_penalty = flags.presence_penalty.value_or(options.presence_penalty);
  options.frequency_penalty = flags.frequency_penalty.value_or(options.frequency_penalty);
  for (const std::string& bias : flags.logit_bias) options.logit_bias.push_back(parse_bias(bias));
  options.seed = flags.seed.has_value() ? static_cast<std::uint64_t>(*flags.seed) : random_seed();
  runtime::validate(options, vocab_size);
  return options;
}

}  // namespace kalibri::cli

// What accuracy tables say of the order of variants: the same for published and for measured ones.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kalibri::test {

/// Mean KL by variant.
inline std::map<std::string, double> mean_kl(const nlohmann::json& variants) {
  std::map<std::string, double> kl;
  for (const nlohmann::json& variant : variants) {
    if (variant.contains("kl_mean") && variant.at("kl_mean").is_number())
      kl[variant.at("name").get<std::string>()] = variant.at("kl_mean").get<double>();
  }
  return kl;
}

/// What does not hold of "fp32 is the best; bf16 and 8bit are better than mixed, mixed is better than 4 bit, and of
/// that a group of 32 is better than one of 64"; empty when all holds.
inline std::string order_error(const nlohmann::json& variants) {
  const std::map<std::string, double> kl = mean_kl(variants);
  for (const char* name : {"fp32", "bf16", "8bit", "4bit", "4bit-g32", "mixed"}) {
    if (!kl.contains(name)) return fmt::format("{} has no figure", name);
  }
  for (const auto& [better, worse] : {std::pair{"fp32", "bf16"},
                                      {"fp32", "8bit"},
                                      {"bf16", "mixed"},
                                      {"8bit", "mixed"},
                                      {"mixed", "4bit-g32"},
                                      {"4bit-g32", "4bit"}}) {
    if (!(kl.at(better) < kl.at(worse)))
      return fmt::format("{} ({:.3g}) is not better than {} ({:.3g})", better, kl.at(better), worse, kl.at(worse));
  }
  return "";
}

/// How far 8bit is from bf16: 1 is equally good.
inline double ratio_8bit_to_bf16(const nlohmann::json& variants) {
  const std::map<std::string, double> kl = mean_kl(variants);
  return kl.at("8bit") / kl.at("bf16");
}

/// Whether 8bit is about as good as bf16, without a tolerance: their ratio is nearer to 1 than that of mixed and either
/// (published: 0.93, against 1.80 and 1.92).
inline bool is_8bit_like_bf16(const nlohmann::json& variants) {
  const std::map<std::string, double> kl = mean_kl(variants);
  const auto apart = [&](const char* one, const char* other) { return std::abs(std::log(kl.at(one) / kl.at(other))); };
  return apart("8bit", "bf16") < std::min(apart("mixed", "8bit"), apart("mixed", "bf16"));
}

}  // namespace kalibri::test

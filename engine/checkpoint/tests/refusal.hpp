// How tests say that an input is refused: with which code, and with which words in the message.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/base/error.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::test {

/// `action` must throw Error(code) whose message has every one of `parts`.
inline void check_refused(ErrorCode code, std::initializer_list<std::string_view> parts,
                          const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(static_cast<int>(error.code()) == static_cast<int>(code));
    for (const std::string_view part : parts) {
      CHECK_THAT(std::string(error.what()), Catch::Matchers::ContainsSubstring(std::string(part)));
    }
    return;
  }
  FAIL("not refused; expected a message with: " << *parts.begin());
}

}  // namespace kalibri::test

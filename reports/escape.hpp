// Text inside XML and HTML.
#pragma once

#include <string>

namespace kalibri::reports {

/// `text` with what markup would take for its own written as entities; the same in an element and in an attribute.
std::string escaped(const std::string& text);

}  // namespace kalibri::reports

// The command line of `generate` and `chat`: their flags, most of which they share.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kalibri::cli {

/// Adds the commands; the one that was parsed puts itself into `chosen`.
void add_generate(CLI::App& app, std::function<int()>& chosen);
void add_chat(CLI::App& app, std::function<int()>& chosen);

}  // namespace kalibri::cli

// A command that answers each line of its input with one line, so that another program can keep it running and ask.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kalibri::cli {

/// Writes answer(line), a JSON text, in one line for each line of `in`, at once. Stops when `out` takes no more (main
/// says so). Throws what `answer` throws of Error, with the line's number; Error(input) for a line longer than 64 MiB.
void answer_lines(std::istream& in, std::ostream& out,
                  const std::function<std::string(const std::string& line)>& answer);

}  // namespace kalibri::cli

// What --threads means, for every command that has it.
#pragma once

namespace kalibri::cli {

/// 0 -> the number of cores this process may use. Throws Error(usage) for a negative number or more than 1,024.
int thread_count(int n_threads);

}  // namespace kalibri::cli

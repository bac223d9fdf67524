// Deliberate defects, at the expression that they change. In every program but `kalibri-mutants` the macro is the right
// expression and nothing else.
#pragma once

#ifdef KALIBRI_MUTANTS

#include <string>
#include <string_view>

namespace kalibri::mutation {

/// Chooses the one defect of this process, before anything runs.
void activate(const std::string& name);
/// Whether `name` is the chosen defect; remembers that it was asked for.
bool active(std::string_view name);
/// Whether the chosen defect's expression has been reached (a name that no expression has is a mistake of the caller).
bool reached();

}  // namespace kalibri::mutation

#define KALIBRI_MUTATE(right, name, wrong) (kalibri::mutation::active(name) ? (wrong) : (right))

#else

#define KALIBRI_MUTATE(right, name, wrong) (right)

#endif

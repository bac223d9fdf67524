// Which of the standard streams a person looks at, or types into.
#pragma once

namespace kalibri::cli {

struct Terminal {
  bool in = false;
  bool out = false;
  bool err = false;
};

}  // namespace kalibri::cli

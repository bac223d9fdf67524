#include "reference/model.hpp"

#include "reference/config_reader.hpp"
#include "reference/kolibri1.hpp"

namespace kalibri::reference {

Model open_model(const Checkpoint& checkpoint, at::ScalarType dtype) {
  const ConfigReader config(checkpoint);
  if (config.text("model_type") == "kolibri1") return open_kolibri1(checkpoint, dtype);
  config.refuse("model_type", "only kolibri1 is known");
}

}  // namespace kalibri::reference

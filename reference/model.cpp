#include "reference/model.hpp"

#include "reference/config_reader.hpp"
#include "reference/kolibri1.hpp"
#include "reference/qwen4_exp.hpp"

namespace kalibri::reference {

Model open_model(const Checkpoint& checkpoint, const Rounding& r) {
  const ConfigReader config(checkpoint);
  const std::string model_type = config.text("model_type");
  if (model_type == "kolibri1") return open_kolibri1(checkpoint, r);
  if (model_type == "qwen4_exp" || model_type == "qwen4_exp_text") return open_qwen4_exp(checkpoint, r);
  config.refuse("model_type", "only kolibri1, qwen4_exp and qwen4_exp_text are known");
}

}  // namespace kalibri::reference

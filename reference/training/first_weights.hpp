// The shape that random first weights are given before a training begins: recall is then a matter of reading off what
// was found, and learnt in a fraction of the time. Nothing is fixed by it; training may change every value.
#pragma once

#include "reference/kolibri1_config.hpp"
#include "reference/qwen4_exp_config.hpp"
#include "reference/training/trainee.hpp"

namespace kalibri::reference::training {

/// `w` as drawn. What stood 1, 2, 3, ... tokens back goes to a lane of the residual each (some of its first channels);
/// the layer that sees everything compares lanes (a key is what stood two tokens before a token: a value's name;
/// queries are what stood elsewhere before the one that asks), and copies the token that it finds.
void shape_first_weights(const Kolibri1Config& c, const Weights& w);

/// The same; hidden_size must have room for linear_conv_kernel_dim - 1 lanes of linear_value_head_dim and more.
void shape_first_weights(const Qwen4ExpConfig& c, const Weights& w);

}  // namespace kalibri::reference::training

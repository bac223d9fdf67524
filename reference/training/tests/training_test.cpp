// The forward pass and the gradients of the models under training, in f64.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "fixtures/catch.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/attention.hpp"
#include "reference/tests/golden_set.hpp"
#include "reference/training/export.hpp"
#include "reference/training/trainee.hpp"

namespace kalibri::reference::training {
namespace {

const std::vector<std::string> kModels = {"kolibri1", "qwen4_exp"};

/// Two documents of different length in one row, and the row's end empty.
std::vector<Ids> two_documents() {
  std::vector<Ids> documents(2);
  for (std::int32_t t = 0; t < 37; ++t) documents[0].push_back(2 + (t * 7 + t * t % 11) % 38);
  for (std::int32_t t = 0; t < 26; ++t) documents[1].push_back(2 + (t * 5 + t * t % 13) % 38);
  documents[1].back() = documents[0].back() = 1;
  return documents;
}

Batch one_row(const Trainee& trainee) {
  at::set_num_threads(1);  // rows are too short for more
  const std::vector<Ids> documents = two_documents();
  std::size_t next = 0;
  return pack({documents[0], documents[1], Ids(64, 3)}, next, 1, 70, trainee.alignment);
}

/// First weights, every one of them moved, so that no norm or bias is what it does nothing at; numbers of f32.
void draw_weights(const Trainee& trainee, std::uint64_t seed, const Weights& weights) {
  initialise(trainee.layout.table, seed, weights.values());
  ParameterTable noise = trainee.layout.table;
  for (Parameter& p : noise.parameters) {
    p.mean = 0;
    p.spread = 0.1F;
  }
  at::Tensor moved = at::zeros_like(weights.values());
  initialise(noise, seed + 1, moved);
  weights.values().add_(moved);
  weights.values().copy_(weights.values().to(at::kFloat).to(at::kDouble));
}

std::vector<float> as_floats(const at::Tensor& values) {
  const at::Tensor floats = values.to(at::kFloat);
  return {floats.data_ptr<float>(), floats.data_ptr<float>() + floats.numel()};
}

TEST_CASE("packed rows give each document the logits that the reference gives it alone") {
  for (const std::string& model : kModels) {
    INFO(model);
    const Trainee trainee = make_trainee(model, "tiny");
    const Weights weights(trainee.layout.table, at::kDouble);
    draw_weights(trainee, 3, weights);
    const fixtures::TempDirectory scratch;
    const std::filesystem::path checkpoint = scratch.path() / "model";
    export_checkpoint(trainee.layout, as_floats(weights.values()), {}, checkpoint, /*exact=*/true);
    const at::NoGradGuard no_gradients;
    Choices choices;
    const at::Tensor logits = trainee.forward(weights, one_row(trainee), {true, 1}, choices).logits;
    std::int64_t row = 0;
    for (const Ids& ids : two_documents()) {
      const test::Tokens tokens = {{"golden", {ids.begin(), ids.end()}}};
      const std::filesystem::path out = scratch.path() / ("at" + std::to_string(row) + ".h5");
      const fixtures::RunResult result = test::run_reference(checkpoint, tokens, out, {"--dtype", "f64"});
      INFO(result.err);
      REQUIRE(result.exit_status == 0);
      const dump::Reader dump(out);
      const std::vector<double> truth = test::read_all(dump, "logits");
      const auto n = static_cast<std::int64_t>(ids.size());
      REQUIRE(static_cast<std::int64_t>(truth.size()) == n * trainee.vocab_size);
      const at::Tensor own = logits.narrow(0, row, n).contiguous();
      double largest = 0;
      double worst = 0;
      for (std::size_t i = 0; i < truth.size(); ++i) {
        largest = std::max(largest, std::fabs(truth[i]));
        worst = std::max(worst, std::fabs(truth[i] - own.data_ptr<double>()[i]));
      }
      // Sums of some hundred terms in another order, through a few layers that amplify.
      const double bound = 1e5 * 0x1p-52 * largest;
      CHECK(worst <= bound);
      CHECK(largest > 0.1);
      // A row that is off by one token is far outside: the bound can tell.
      CHECK((logits.narrow(0, row + 1, n - 1) - own.narrow(0, 0, n - 1)).abs().max().item<double>() > 1e6 * bound);
      row += (n + trainee.alignment - 1) / trainee.alignment * trainee.alignment;
    }
  }
}

/// The loss of `values` with the recorded choices.
double loss_at(const Trainee& trainee, const Weights& weights, const Batch& batch, const Phase& phase,
               Choices& choices) {
  const at::NoGradGuard no_gradients;
  const Outputs outputs = trainee.forward(weights, batch, phase, choices);
  const at::Tensor loss = target_loss(outputs.logits, batch);
  return (outputs.auxiliary.defined() ? loss + outputs.auxiliary : loss).item<double>();
}

/// Compares, for each parameter that `takes` names, the derivative along a random direction with central differences.
template <typename Takes>
void check_gradients(const std::string& model, const Phase& phase, Takes takes) {
  const Trainee trainee = make_trainee(model, "tiny");
  const Weights weights(trainee.layout.table, at::kDouble);
  draw_weights(trainee, 4, weights);
  const Batch batch = one_row(trainee);
  Choices choices;
  const Outputs outputs = trainee.forward(weights, batch, phase, choices);
  const at::Tensor loss = target_loss(outputs.logits, batch);
  (outputs.auxiliary.defined() ? loss + outputs.auxiliary : loss).backward();
  choices.replay = true;

  ParameterTable direction_table = trainee.layout.table;
  for (Parameter& p : direction_table.parameters) {
    p.mean = 0;
    p.spread = 1;
  }
  at::Tensor directions = at::zeros_like(weights.values());
  initialise(direction_table, 5, directions);
  const at::Tensor start = weights.values().clone();
  int n_told_apart = 0;
  int n_checked = 0;
  for (const Parameter& p : trainee.layout.table.parameters) {
    if (!p.is_learnt || !takes(p.name)) continue;
    INFO(model << ' ' << p.name);
    const auto own = [&](const at::Tensor& flat) { return flat.narrow(0, p.offset, p.n_elements); };
    const auto difference = [&](double h) {
      weights.values().copy_(start);
      own(weights.values()).add_(own(directions), h);
      const double above = loss_at(trainee, weights, batch, phase, choices);
      weights.values().copy_(start);
      own(weights.values()).add_(own(directions), -h);
      return (above - loss_at(trainee, weights, batch, phase, choices)) / (2 * h);
    };
    const double h = 1e-5 / std::sqrt(static_cast<double>(p.n_elements));
    const double near = difference(h);
    const double far = difference(2 * h);
    // The error of `near` is a third of far - near, and what rounding of the two losses leaves.
    const double bound = std::fabs(far - near) + 256 * 0x1p-52 * loss.item<double>() / h;
    const double gradient = at::dot(own(weights.grads()), own(directions)).template item<double>();
    CHECK(std::fabs(gradient - near) <= bound);
    n_told_apart += std::fabs(gradient) / 100 > bound ? 1 : 0;  // a gradient wrong by a hundredth would be seen
    ++n_checked;
  }
  CHECK(n_checked > 0);
  CHECK(n_told_apart * 10 >= n_checked * 9);
}

TEST_CASE("gradients are those of finite differences while routing and selection are frozen") {
  const auto not_indexer = [](const std::string& name) { return name.find("indexer") == std::string::npos; };
  check_gradients("kolibri1", {}, not_indexer);
  check_gradients("qwen4_exp", {/*is_sparse=*/false, 0}, not_indexer);
  check_gradients("qwen4_exp", {/*is_sparse=*/true, 0}, not_indexer);
  // The indexer learns from its divergence alone, whose target is taken as given.
  const auto indexer = [](const std::string& name) { return name.find("indexer") != std::string::npos; };
  check_gradients("qwen4_exp", {/*is_sparse=*/true, 1}, indexer);
}

TEST_CASE("Kolibri's first heads begin by looking one to four tokens back") {
  const Trainee trainee = make_trainee("kolibri1", "nano");
  const Weights weights(trainee.layout.table, at::kDouble);
  const at::NoGradGuard no_gradients;
  trainee.shape_first_weights(weights);  // on zeros: nothing but the shape
  const std::int64_t head_dim = 32;
  const std::int64_t n_tokens = 33;
  const at::Tensor common = at::ones({n_tokens, 256}, at::kDouble);
  const Rotation turn = rotation(n_tokens, head_dim, 10000, at::kDouble);
  const auto heads = [&](const char* name) {
    const at::Tensor weight = weights[std::string("model.layers.0.self_attn.") + name + ".weight"];
    return rotate(at::mm(common, weight.t()).view({n_tokens, -1, head_dim}), turn);
  };
  const at::Tensor q = heads("q_proj");
  const at::Tensor k = heads("k_proj");
  for (std::int64_t head = 0; head < 4; ++head) {
    const at::Tensor scores = at::mv(k.select(1, 0), q[n_tokens - 1][head]);
    CHECK(scores.argmax().item<std::int64_t>() == n_tokens - 1 - (head + 1));
  }
}

/// A register of ten entries (`- name : value .`) of which one is asked for (`? name x y :`), each once: how far a
/// value's logit lies higher when it is the one asked for, in standard deviations of what it moves by otherwise.
double untrained_recall(const std::string& model, bool is_shaped, std::uint64_t seed) {
  const at::NoGradGuard no_gradients;
  at::set_num_threads(1);
  const Trainee trainee = make_trainee(model, "nano");
  const Weights weights(trainee.layout.table, at::kFloat);
  initialise(trainee.layout.table, seed, weights.values());
  if (is_shaped) trainee.shape_first_weights(weights);
  constexpr std::int32_t kEntries = 10;
  std::vector<at::Tensor> rows;  // of the ten values' logits, by the entry that is asked for
  for (std::int32_t asked = 0; asked < kEntries; ++asked) {
    Ids ids;
    for (std::int32_t entry = 0; entry < kEntries; ++entry) {
      const Ids line = {10, 500 + 37 * entry, 11, 1000 + 53 * entry, 12};
      ids.insert(ids.end(), line.begin(), line.end());
    }
    const Ids question = {13, 500 + 37 * asked, 14, 15, 11};
    ids.insert(ids.end(), question.begin(), question.end());
    std::size_t next = 0;
    const auto n_tokens = static_cast<std::int64_t>(ids.size());
    const Batch batch = pack({ids, Ids(64, 3)}, next, 1, n_tokens + 1, trainee.alignment);
    Choices choices;
    const at::Tensor row = trainee.forward(weights, batch, {/*is_sparse=*/false, 0}, choices).logits[n_tokens - 1];
    rows.push_back(row.slice(0, 1000, 1000 + 53 * kEntries, 53));
  }
  const at::Tensor logits = at::stack(rows);
  const at::Tensor moved = logits - logits.mean(0, /*keepdim=*/true);
  const at::Tensor others = moved.masked_select(at::eye(kEntries).to(at::kBool).logical_not());
  return ((moved.diag().mean() - others.mean()) / others.std()).item<double>();
}

TEST_CASE(
    "before any training the value of a name that is asked for stands out, by the shape of the first weights alone") {
  constexpr int kSeeds = 6;
  const double stray =
      1 / std::sqrt(10.0 * kSeeds);  // standard deviation of a mean of ten values a seed that only stray
  for (const std::string& model : kModels) {
    INFO(model);
    double shaped = 0, plain = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      shaped += untrained_recall(model, true, seed) / kSeeds;
      plain += untrained_recall(model, false, seed) / kSeeds;
    }
    CHECK(shaped > 4 * stray);
    CHECK(std::abs(plain) < 4 * stray);
  }
}

TEST_CASE("what the indexer leaves out is not attended to, and the indexer moves nothing but itself") {
  const Trainee trainee = make_trainee("qwen4_exp", "tiny");
  const Weights weights(trainee.layout.table, at::kDouble);
  draw_weights(trainee, 6, weights);
  const Batch batch = one_row(trainee);
  Choices dense, sparse;
  const at::NoGradGuard no_gradients;
  const at::Tensor all = trainee.forward(weights, batch, {false, 0}, dense).logits;
  const at::Tensor kept = trainee.forward(weights, batch, {true, 0}, sparse).logits;
  // The budget is 8 tokens in blocks of 4: up to token 11 nothing can be left out.
  CHECK((all - kept).narrow(0, 0, 11).abs().max().item<double>() == 0);
  CHECK((all - kept).narrow(0, 12, 25).abs().max().item<double>() > 1e-6);
}

}  // namespace
}  // namespace kalibri::reference::training

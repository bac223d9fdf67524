// `kalibri convert` from outside: what it prints and writes, how a killed run and a full disk end, how much memory it
// takes, and that `dump` and `inspect` take what it made.
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/run_program.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/names.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using fixtures::RunResult;
using fixtures::TempDirectory;
namespace fs = std::filesystem;

namespace {

const std::string kProgram = KALIBRI_BIN_DIR "/kalibri";

RunResult kalibri_program(const std::vector<std::string>& arguments, const fixtures::RunOptions& options = {}) {
  return fixtures::run_program(kProgram, arguments, options);
}

/// Large enough to be interrupted: 140 MB in FP8.
fixtures::Kolibri1Shape middling() {
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_tiny();
  shape.hidden_size = 512;
  shape.n_experts = 64;
  shape.moe_intermediate_size = 256;
  shape.n_layers = 5;
  shape.vocab_size = 8192;
  return shape;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

/// Whether a conversion into `out` is at its work.
bool is_being_written(const fs::path& out) {
  std::error_code none;
  return fs::file_size(out / ".kalibri-convert" / "model.safetensors.part", none) > 1'000'000 && !none;
}

/// Runs the engine with every tap.
fs::path dump_of(const fs::path& checkpoint, const std::string& precision, const TempDirectory& scratch) {
  const fs::path tokens = scratch.path() / "tokens.json";
  fixtures::write_file(tokens, R"({"p": [1, 5, 9, 100, 7, 7, 3, 2, 90, 41, 8, 6]})");
  const fs::path out = scratch.path() / (checkpoint.filename().string() + " " + precision + ".h5");
  const RunResult run =
      kalibri_program({"dump", checkpoint, "--tokens", tokens, "-o", out, "--taps", "all", "--precision", precision});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  CHECK(dump::Reader(out).header().precision == precision);
  return out;
}

/// All paths that a dump of prompt p has.
std::set<std::string> paths_in(const dump::Reader& reader) {
  std::set<std::string> paths;
  const auto add = [&](const std::string& path) {
    if (reader.find("p", path)) paths.insert(path);
  };
  for (const dump::TensorName& tensor : dump::kPromptTensors) add(std::string(tensor.name));
  for (const std::int64_t layer : reader.prompts()[0].layers) {
    for (const dump::TensorName& tensor : dump::kLayerTensors) add(dump::layer_path(layer, tensor.name));
  }
  return paths;
}

/// The tensors of two dumps that are not equal, bit for bit. Both have the same ones.
std::set<std::string> differing(const fs::path& a, const fs::path& b) {
  const dump::Reader first(a);
  const dump::Reader second(b);
  const std::set<std::string> paths = paths_in(first);
  CHECK(paths == paths_in(second));
  CHECK(paths.size() > first.prompts()[0].layers.size() * 8);
  std::set<std::string> result;
  for (const std::string& path : paths) {
    const dump::DatasetInfo info = *first.find("p", path);
    CHECK(info.shape == second.find("p", path)->shape);
    const std::int64_t n = info.shape[0];
    const bool is_integer = info.type == dump::ElementType::i32 || info.type == dump::ElementType::i64;
    const bool is_same = is_integer ? first.read_i64("p", path, 0, n) == second.read_i64("p", path, 0, n)
                                    : first.read_f64("p", path, 0, n) == second.read_f64("p", path, 0, n);
    if (!is_same) result.insert(path);
  }
  return result;
}

}  // namespace

TEST_CASE("A converted directory is inspected and dumped, with the logits of quantising on the fly") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const fs::path out = scratch.path() / "converted set";
  const RunResult run = kalibri_program({"convert", *source, out});
  INFO(run.err);
  REQUIRE(run.exit_status == 0);
  CHECK_THAT(run.out,
             ContainsSubstring("experts 4-bit, attention and other matrices 8-bit, embedding 8-bit, head 8-bit"));
  CHECK_THAT(run.out, ContainsSubstring("197 tensors, 2741264 parameters"));
  CHECK_THAT(run.out, ContainsSubstring("MB/s"));
  CHECK(run.err.empty());
  const RunResult inspected = kalibri_program({"inspect", out, "--full-fingerprint"});
  CHECK(inspected.exit_status == 0);
  CHECK_THAT(inspected.out, ContainsSubstring("U32"));
}

TEST_CASE("A converted directory and quantising on the fly give the same dump, every tensor bit for bit") {
  const auto all = [](const std::string& form) {
    return "dense=" + form + ",experts=" + form + ",embed=" + form + ",head=" + form;
  };
  const std::vector<std::string> mixed;
  const std::vector<std::string> four = {"--bits", "4", "--group-size", "32"};
  const std::vector<std::string> eight = {"--bits", "8"};
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::string>> cases = {
      {"kolibri1-k1-fp8", mixed, "mixed-4-8"},
      {"kolibri1-k1-fp8", four, all("affine:4:32")},
      {"kolibri1-k1-fp8", eight, all("affine:8:64")},
      {"kolibri1-k2-fp8", mixed, "mixed-4-8"},  // rows of 16 in the experts' down projection: they stay bf16
      {"kolibri1-k2-fp8", four, all("affine:4:32")},
      {"qwen4-exp-t1-fp8", four, all("affine:4:32")},
      {"qwen4-exp-t2", mixed, "mixed-4-8"},
  };
  for (const auto& [set, options, precision] : cases) {
    const auto source = fixtures::find_golden(set);
    if (!source) KALIBRI_SKIP("golden set missing: " + set);
    INFO(set << ", " << precision);
    const TempDirectory scratch;
    const fs::path out = scratch.path() / "out";
    std::vector<std::string> arguments = {"convert", *source, out};
    arguments.insert(arguments.end(), options.begin(), options.end());
    REQUIRE(kalibri_program(arguments).exit_status == 0);
    const fs::path converted = dump_of(out, "native", scratch);
    CHECK(differing(converted, dump_of(*source, precision, scratch)).empty());
    CHECK(differing(converted, dump_of(out, "exact", scratch)).empty());
    // The control: the source as it is gives other numbers nearly everywhere.
    const std::set<std::string> others = differing(converted, dump_of(*source, "native", scratch));
    CHECK(others.contains("logits"));
    CHECK(others.contains("layers/00/residual"));
    CHECK_FALSE(others.contains("tokens"));
  }
}

TEST_CASE("A dry run says what would be written and writes nothing") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const fs::path out = scratch.path() / "out";
  const RunResult run = kalibri_program(
      {"convert", *source, out, "--dry-run", "--json", "--bits", "4", "--attn-bits", "0", "--layers", "2"});
  REQUIRE(run.exit_status == 0);
  CHECK_FALSE(fs::exists(out));
  const auto plan = nlohmann::json::parse(run.out);
  CHECK(plan.at("tensors").at("lm_head.weight").at("shape") == nlohmann::json{256, 16});
  CHECK(plan.at("tensors").at("model.layers.1.self_attn.q_proj.weight").at("dtype") == "BF16");
  CHECK_FALSE(plan.at("tensors").contains("model.layers.2.self_attn.q_proj.weight"));
  const RunResult text = kalibri_program({"convert", *source, out, "--dry-run", "--rule", "gpu"});
  CHECK_THAT(text.out, ContainsSubstring("model.layers.4.mlp.switch_mlp.down_proj.scales  BF16 [16, 128, 1]"));
  CHECK_THAT(text.out, ContainsSubstring("GPU rule"));
}

TEST_CASE("A killed conversion is no checkpoint, and is started again to the same bytes as one undisturbed") {
  const TempDirectory scratch;
  const fs::path source = scratch.path() / "source";
  fixtures::make_kolibri1(source, middling(), {});
  const fs::path undisturbed = scratch.path() / "undisturbed";
  REQUIRE(kalibri_program({"convert", source, undisturbed}).exit_status == 0);
  const fs::path out = scratch.path() / "out";
  fixtures::RunOptions options;
  options.kill_when = [&] { return is_being_written(out); };
  const RunResult killed = kalibri_program({"convert", source, out, "--threads", "1"}, options);
  REQUIRE(killed.signal == SIGKILL);
  CHECK(names_in(out) == std::set<std::string>{".kalibri-convert"});
  for (const std::string& name : names_in(out / ".kalibri-convert")) CHECK_THAT(name, EndsWith(".part"));
  const RunResult inspected = kalibri_program({"inspect", out});
  CHECK(inspected.exit_status == 2);
  CHECK_THAT(inspected.err, ContainsSubstring("config.json"));
  const RunResult again = kalibri_program({"convert", source, out});
  INFO(again.err);
  REQUIRE(again.exit_status == 0);
  CHECK_THAT(again.out, ContainsSubstring("held a conversion that was interrupted; started again"));
  CHECK(names_in(out) == names_in(undisturbed));
  for (const std::string& name : names_in(out)) {
    CHECK((fixtures::read_file(out / name) == fixtures::read_file(undisturbed / name)));
  }
  const RunResult refused = kalibri_program({"convert", source, out});
  CHECK(refused.exit_status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("holds"));
}

TEST_CASE("Ctrl-C, a source that becomes shorter, and a second process end a conversion without a trace") {
  const TempDirectory scratch;
  const fs::path source = scratch.path() / "source";
  fixtures::make_kolibri1(source, middling(), {});
  const fs::path out = scratch.path() / "out";
  fixtures::RunOptions options;
  options.interrupt_when = [&](const std::string&) { return is_being_written(out); };
  const RunResult interrupted = kalibri_program({"convert", source, out, "--threads", "2"}, options);
  CHECK(interrupted.exit_status == 130);
  CHECK(interrupted.out.empty());
  CHECK(interrupted.err == "kalibri: interrupted; nothing is left in " + out.string() + "\n");
  CHECK_FALSE(fs::exists(out));

  options = {};
  RunResult second;
  options.kill_when = [&] {
    if (is_being_written(out) && second.err.empty()) second = kalibri_program({"convert", source, out});
    return false;
  };
  const RunResult first = kalibri_program({"convert", source, out, "--json", "--threads", "1"}, options);
  CHECK(first.exit_status == 0);
  CHECK(nlohmann::json::parse(first.out).at("started_again") == false);
  CHECK(second.exit_status == 2);
  CHECK_THAT(second.err, ContainsSubstring("another process is converting into it"));
  CHECK(kalibri_program({"inspect", out}).exit_status == 0);
  fs::remove_all(out);

  options.kill_when = [&] {
    if (is_being_written(out)) fs::resize_file(source / "model.safetensors", 30'000'000);
    return false;
  };
  const RunResult cut = kalibri_program({"convert", source, out, "--threads", "1"}, options);
  CHECK(cut.exit_status == 2);
  CHECK_THAT(cut.err, ContainsSubstring("model.safetensors: has become shorter while it was read"));
  CHECK_FALSE(fs::exists(out));
  const RunResult truncated = kalibri_program({"convert", source, out});
  CHECK(truncated.exit_status == 2);
  CHECK_THAT(truncated.err, ContainsSubstring("truncated? fetch the file again"));
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("A checkpoint is not converted into its own folder, whatever that is called, and bf16 has no bits") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const fs::path copy = scratch.path() / "copy";
  fs::create_directory(copy);
  for (const char* name : {"config.json", "model.safetensors"}) fs::copy_file(*source / name, copy / name);
  fs::create_directory(copy / ".kalibri-convert");
  fs::create_symlink(copy, scratch.path() / "link");
  for (const fs::path& out : {copy, copy / ".", scratch.path() / "link"}) {
    const RunResult run = kalibri_program({"convert", copy, out});
    CHECK(run.exit_status == 2);
    CHECK_THAT(run.err, ContainsSubstring("is the checkpoint to convert"));
  }
  CHECK((fixtures::read_file(copy / "model.safetensors") == fixtures::read_file(*source / "model.safetensors")));
  const RunResult both = kalibri_program({"convert", copy, scratch.path() / "out", "--no-quant", "--attn-bits", "8"});
  CHECK(both.exit_status == 2);
  CHECK_THAT(both.err, ContainsSubstring("excludes"));
}

TEST_CASE("Tokenizer, generation settings and licence come along") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const fs::path copy = scratch.path() / "copy";
  fs::create_directory(copy);
  for (const char* name : {"config.json", "model.safetensors"}) fs::copy_file(*source / name, copy / name);
  const std::set<std::string> beside = {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE"};
  for (const std::string& name : beside) fixtures::write_file(copy / name, name + " of this model\n");
  fixtures::write_file(copy / "notes.txt", "of nobody's interest");
  REQUIRE(kalibri_program({"convert", copy, scratch.path() / "out"}).exit_status == 0);
  std::set<std::string> expected = beside;
  expected.insert({"config.json", "model.safetensors", "model.safetensors.index.json"});
  CHECK(names_in(scratch.path() / "out") == expected);
  for (const std::string& name : beside) {
    CHECK(fixtures::read_file(scratch.path() / "out" / name) == name + " of this model\n");
  }
}

TEST_CASE("A disk that is too small is refused before, and one that fills up ends a conversion without a trace") {
  const TempDirectory scratch;
  const fs::path source = scratch.path() / "source";
  fixtures::make_kolibri1(source, middling(), {});
  const fs::path disk = scratch.path() / "disk";
  fs::create_directory(disk);
  // A small disk of its own, in a name space of its own; `$3` fills what is left of it while the conversion runs.
  const std::string script = R"(
    mount -t tmpfs -o size=$4 none "$2" || exit 77
    if [ "$3" = fill ]; then
      (until ls "$2"/out/.kalibri-convert/*.part; do :; done; cat /dev/zero > "$2"/filler) >/dev/null 2>&1 &
    fi
    "$0" convert "$1" "$2/out" --threads 1
    status=$?
    [ -e "$2/out" ] && echo left
    exit $status)";
  const auto run = [&](const char* fill, const char* size) {
    return fixtures::run_program("/usr/bin/env",
                                 {"unshare", "-rm", "sh", "-c", script, kProgram, source, disk, fill, size});
  };
  const RunResult roomy = run("no", "400m");
  if (roomy.exit_status != 0 && roomy.out.empty()) KALIBRI_SKIP("no mount of our own here: " + roomy.err);
  CHECK(roomy.exit_status == 0);
  CHECK_THAT(roomy.out, EndsWith("left\n"));
  const RunResult small = run("no", "50m");
  CHECK(small.exit_status == 2);
  CHECK_THAT(small.err, ContainsSubstring("GB will be written, but 0.052 GB are free there; make room"));
  CHECK(small.out.empty());
  const RunResult full = run("fill", "150m");
  CHECK(full.exit_status == 2);
  CHECK_THAT(full.err, ContainsSubstring("No space left on device; make room, or choose another place"));
  CHECK(full.out.empty());
}

TEST_CASE(
    "Memory of a conversion grows with the number of tensors, by their names and places, and not with their bytes") {
  const TempDirectory scratch;
  fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
  shape.n_experts = 200;
  std::vector<std::int64_t> peak_bytes;
  std::vector<std::int64_t> n_bytes;
  std::vector<std::int64_t> n_tensors;
  for (const std::int64_t n_layers : {2, 10}) {
    shape.n_layers = n_layers;
    const fs::path source = scratch.path() / std::to_string(n_layers);
    fixtures::make_qwen4_exp(source, shape, {});
    const RunResult run = kalibri_program({"convert", source, source / "out", "--json"});
    INFO(run.err);
    REQUIRE(run.exit_status == 0);
    peak_bytes.push_back(nlohmann::json::parse(run.out).at("peak_rss_bytes"));
    n_bytes.push_back(static_cast<std::int64_t>(fs::file_size(source / "model.safetensors")));
    n_tensors.push_back(
        static_cast<std::int64_t>(fixtures::read_safetensors_header(source / "model.safetensors").size()));
  }
  const std::int64_t n_more_tensors = n_tensors[1] - n_tensors[0];
  REQUIRE(n_bytes[1] - n_bytes[0] > 5 * 2048 * n_more_tensors);  // so that one is not the other
  INFO(peak_bytes[0] << " and " << peak_bytes[1] << " bytes");
  CHECK(peak_bytes[1] - peak_bytes[0] < 2048 * n_more_tensors);
}

TEST_CASE("A conversion that meets the end of its disk says so and leaves nothing behind") {
  const auto source = fixtures::find_golden("kolibri1-k1-fp8");
  if (!source) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const TempDirectory scratch;
  const fs::path out = scratch.path() / "out";
  // A limit on the size of files (in blocks of 512 bytes), which the system treats like a full disk.
  const std::string command = "ulimit -f 1000; exec \"$0\" convert \"$1\" \"$2\"";
  const RunResult run = fixtures::run_program("/bin/sh", {"-c", command, kProgram, *source, out});
  CHECK(run.exit_status == 2);
  CHECK_THAT(run.err, ContainsSubstring("model.safetensors.part: cannot be written"));
  CHECK_THAT(run.err, ContainsSubstring("make room, or choose another place"));
  CHECK_FALSE(fs::exists(out));
  const RunResult unlimited =
      fixtures::run_program("/bin/sh", {"-c", "exec \"$0\" convert \"$1\" \"$2\"", kProgram, *source, out});
  CHECK(unlimited.exit_status == 0);
}

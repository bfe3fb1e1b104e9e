// withy-bench-cuda: proves the executor for GPUs without one, in the runner of engine/cuda/on_cpu/:
// that it agrees with the CPU's, that rows and trees are independent of what is computed beside
// them, that no order of threads matters, and what its kernels move. Prints a table on stderr and
// one JSON line last on stdout. Says nothing of speed: that takes a card (`./withy bench engine`).
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "base/ticks.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/model/bundle.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/model.h"
#include "engine/model/program.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/synth.h"
#include "engine/sampling/likeness.h"
#include "nlohmann/json.hpp"

ABSL_FLAG(std::string, pocket, "", "the pocket model");
ABSL_FLAG(std::string, real, "", "a published model; empty: none");
ABSL_FLAG(std::string, gate, "", "JSON of engine/cuda/static_gate.py; empty: no nvcc");
ABSL_FLAG(int, rows, 1000, "rows of the invariance check");
ABSL_FLAG(int, trees, 200, "trees of the tree check");

namespace withy::bench {
namespace {

using engine::ContextView;
using engine::Cosine;
using engine::Model;
using engine::ModelOptions;
using engine::Row;
using engine::ScratchKv;
using engine::SynthShape;
using engine::on_cpu::GpuOnCpu;
using engine::on_cpu::KernelCounts;
using engine::on_cpu::Order;
using engine::on_cpu::RunnerOptions;

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "withy_cuda_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A model on the runner, and its device.
struct OnRunner {
  std::unique_ptr<Model> model;
  GpuOnCpu* gpu = nullptr;
};

absl::StatusOr<OnRunner> OpenOnRunner(const Folder& folder, const std::string& path,
                                      const RunnerOptions& runner, ModelOptions options = {}) {
  OnRunner opened;
  options.cache_dir = folder.path();
  options.device = "cuda";
  options.open_gpu = [&](int32_t) {
    auto gpu = std::make_unique<GpuOnCpu>(runner);
    opened.gpu = gpu.get();
    return gpu;
  };
  WITHY_ASSIGN_OR_RETURN(opened.model, Model::Open(path, options));
  return opened;
}

absl::StatusOr<std::unique_ptr<Model>> OpenOnCpu(const Folder& folder, const std::string& path,
                                                 const std::string& target = "") {
  ModelOptions options;
  options.target = target;
  options.cache_dir = folder.path();
  return Model::Open(path, options);
}

SynthShape SmallShape() {
  SynthShape shape = *engine::FindSynthShape("tiny");
  shape.layers = 2;
  shape.d_model = shape.d_ff = 128;
  shape.heads = 4;
  shape.kv_heads = 1;
  shape.vocab_size = 320;
  return shape;
}

absl::StatusOr<std::string> Write(const Folder& folder, const SynthShape& shape,
                                  const std::string& type, const std::string& name) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgmlType ggml, engine::FindSynthType(type));
  WITHY_RETURN_IF_ERROR(engine::WriteSynthModel(shape, ggml, 7, folder / name));
  return folder / name;
}

std::vector<int32_t> RandomTokens(std::mt19937& random, int32_t count, int32_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

std::vector<Row> PlainRows(std::span<const int32_t> tokens, int32_t first) {
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t position = first + static_cast<int32_t>(i);
    rows.push_back(
        {.token = tokens[i], .position = position, .slot = position, .want_logits = true});
  }
  return rows;
}

absl::StatusOr<std::vector<float>> Forward(Model& model, const ScratchKv& kv,
                                           std::span<const Row> rows) {
  size_t wanted = 0;
  for (const Row& row : rows) wanted += row.want_logits ? 1 : 0;
  std::vector<float> logits(wanted * static_cast<size_t>(model.info().vocab_size));
  const ContextView view = kv.View();
  WITHY_RETURN_IF_ERROR(model.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()));
  return logits;
}

constexpr char kText[] =
    "The old lighthouse stood at the end of the pier, where the gulls gathered every morning "
    "before "
    "the boats came in. People said that the keeper knew every captain by the sound of his engine.";

absl::StatusOr<std::vector<int32_t>> TokensFor(const std::string& path, const Folder& folder,
                                               bool is_real, int32_t count) {
  ModelOptions options;
  options.cache_dir = folder.path();
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle, engine::OpenBundle(path, options));
  if (is_real) return bundle.tokenizer->Encode(kText, {.add_bos = true});
  std::mt19937 random(1);
  return RandomTokens(random, count, bundle.model->info().vocab_size);
}

// How far two sets of logits [rows, vocab] are from each other.
struct Likeness {
  double all = 1;    // cosine over all rows
  double worst = 1;  // of a row
  void Take(const Likeness& other) {
    all = std::min(all, other.all);
    worst = std::min(worst, other.worst);
  }
};

Likeness Compare(std::span<const float> a, std::span<const float> b, size_t vocab) {
  Likeness likeness{.all = Cosine(a, b)};
  for (size_t at = 0; at < a.size(); at += vocab) {
    likeness.worst = std::min(likeness.worst, Cosine(a.subspan(at, vocab), b.subspan(at, vocab)));
  }
  return likeness;
}

// GPU and CPU; and two kernel targets of the CPU, which differ as much on trained models: a
// rounding of an 8-bit activation that falls the other way.
struct Agreement {
  Likeness gpu;
  Likeness cpu_targets;
};

absl::StatusOr<Agreement> MeasureAgreement(const Folder& folder, const std::string& path,
                                           bool is_real) {
  WITHY_ASSIGN_OR_RETURN(const auto tokens, TokensFor(path, folder, is_real, 24));
  WITHY_ASSIGN_OR_RETURN(const auto cpu, OpenOnCpu(folder, path));
  WITHY_ASSIGN_OR_RETURN(const auto portable, OpenOnCpu(folder, path, "portable"));
  WITHY_ASSIGN_OR_RETURN(const OnRunner gpu, OpenOnRunner(folder, path, {}));
  const auto count = static_cast<int32_t>(tokens.size());
  const std::vector<Row> rows = PlainRows(tokens, 0);
  std::vector<std::vector<float>> logits;
  for (Model* model : {cpu.get(), portable.get(), gpu.model.get()}) {
    WITHY_ASSIGN_OR_RETURN(logits.emplace_back(),
                           Forward(*model, ScratchKv(model->info(), count), rows));
  }
  const auto vocab = static_cast<size_t>(cpu->info().vocab_size);
  const Agreement agreement = {Compare(logits[0], logits[2], vocab),
                               Compare(logits[0], logits[1], vocab)};
  std::fprintf(stderr, "%-36s cosine %.6f, worst row %.6f; of the CPU's targets %.6f, %.6f\n",
               path.substr(path.rfind('/') + 1).c_str(), agreement.gpu.all, agreement.gpu.worst,
               agreement.cpu_targets.all, agreement.cpu_targets.worst);
  return agreement;
}

int CountDifferent(std::span<const float> a, std::span<const float> b, size_t width) {
  int different = 0;
  for (size_t at = 0; at < a.size(); at += width) {
    if (std::memcmp(&a[at], &b[at], width * sizeof(float)) != 0) ++different;
  }
  return different;
}

// Rows that differ when prompts are cut at random places and pieces and paths change.
absl::StatusOr<int> InvarianceMismatches(const Folder& folder, const std::string& path, int rows) {
  constexpr int32_t kPrompt = 100;
  WITHY_ASSIGN_OR_RETURN(const OnRunner whole, OpenOnRunner(folder, path, {}));
  ModelOptions other;
  other.max_piece_rows = 7;
  other.matrix_unit_rows = 5;
  WITHY_ASSIGN_OR_RETURN(const OnRunner cut, OpenOnRunner(folder, path, {}, other));
  const auto vocab = static_cast<size_t>(whole.model->info().vocab_size);
  std::mt19937 random(2);
  int mismatches = 0;
  for (int done = 0; done < rows; done += kPrompt) {
    const std::vector<int32_t> tokens =
        RandomTokens(random, kPrompt, whole.model->info().vocab_size);
    WITHY_ASSIGN_OR_RETURN(
        const auto want,
        Forward(*whole.model, ScratchKv(whole.model->info(), kPrompt), PlainRows(tokens, 0)));
    const ScratchKv kv(cut.model->info(), kPrompt);
    for (int32_t first = 0; first < kPrompt;) {
      const int32_t n = std::min<int32_t>(1 + static_cast<int32_t>(random() % 20), kPrompt - first);
      const auto piece =
          std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(n));
      WITHY_ASSIGN_OR_RETURN(const auto got, Forward(*cut.model, kv, PlainRows(piece, first)));
      mismatches += CountDifferent(
          got, std::span(want).subspan(static_cast<size_t>(first) * vocab, got.size()), vocab);
      first += n;
    }
  }
  return mismatches;
}

// Nodes of random trees whose logits differ from those of plain decoding.
absl::StatusOr<int> TreeMismatches(const Folder& folder, const std::string& path, int trees) {
  constexpr int32_t kPrefix = 13;
  constexpr int32_t kNodes = 5;
  WITHY_ASSIGN_OR_RETURN(const OnRunner on, OpenOnRunner(folder, path, {}));
  Model& model = *on.model;
  const int32_t vocab = model.info().vocab_size;
  std::mt19937 random(3);
  int mismatches = 0;
  for (int tree = 0; tree < trees; ++tree) {
    const std::vector<int32_t> prefix = RandomTokens(random, kPrefix, vocab);
    const std::vector<int32_t> tokens = RandomTokens(random, kNodes, vocab);
    std::vector<int32_t> slots(40);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = kPrefix + static_cast<int32_t>(i);
    std::shuffle(slots.begin(), slots.end(), random);
    std::vector<std::vector<int32_t>> ancestors(kNodes);
    std::vector<std::vector<int32_t>> paths(kNodes);
    std::vector<Row> rows;
    for (size_t i = 0; i < kNodes; ++i) {
      if (const size_t parent = random() % (i + 1); parent < i) {
        ancestors[i] = ancestors[parent];
        ancestors[i].push_back(slots[parent]);
        paths[i] = paths[parent];
      }
      paths[i].push_back(tokens[i]);
      rows.push_back({.token = tokens[i],
                      .position = kPrefix + static_cast<int32_t>(ancestors[i].size()),
                      .slot = slots[i],
                      .want_logits = true,
                      .ancestor_slots = ancestors[i]});
    }
    const ScratchKv kv(model.info(), kPrefix + 40);
    WITHY_RETURN_IF_ERROR(engine::Prefill(model, kv, prefix, 0, nullptr));
    WITHY_ASSIGN_OR_RETURN(const auto got, Forward(model, kv, rows));
    for (size_t i = 0; i < kNodes; ++i) {
      const ScratchKv plain(model.info(), kPrefix + kNodes);
      WITHY_RETURN_IF_ERROR(engine::Prefill(model, plain, prefix, 0, nullptr));
      std::vector<float> want;
      for (size_t t = 0; t < paths[i].size(); ++t) {
        WITHY_ASSIGN_OR_RETURN(want, Forward(model, plain,
                                             PlainRows(std::span(&paths[i][t], 1),
                                                       kPrefix + static_cast<int32_t>(t))));
      }
      const auto width = static_cast<size_t>(vocab);
      mismatches += CountDifferent(std::span(got).subspan(i * width, width), want, width);
    }
  }
  return mismatches;
}

// Rows that differ between orders of blocks and threads; findings of the checks count, too.
absl::StatusOr<int> OrderMismatches(const Folder& folder, const std::string& path) {
  constexpr int32_t kPrompt = 30;
  std::vector<float> want;
  int mismatches = 0;
  for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    WITHY_ASSIGN_OR_RETURN(const OnRunner on,
                           OpenOnRunner(folder, path, {.order = order, .checks = true}));
    std::mt19937 random(4);
    const auto tokens = RandomTokens(random, kPrompt + 1, on.model->info().vocab_size);
    const ScratchKv kv(on.model->info(), kPrompt + 1);
    const std::span<const int32_t> all(tokens);
    WITHY_ASSIGN_OR_RETURN(auto got, Forward(*on.model, kv, PlainRows(all.first(kPrompt), 0)));
    WITHY_ASSIGN_OR_RETURN(const auto next,
                           Forward(*on.model, kv, PlainRows(all.subspan(kPrompt), kPrompt)));
    got.insert(got.end(), next.begin(), next.end());
    if (want.empty()) want = got;
    mismatches += CountDifferent(got, want, static_cast<size_t>(on.model->info().vocab_size));
    for (const auto& finding : on.gpu->runner().watch().findings()) {
      std::fprintf(stderr, "%s\n", engine::on_cpu::Describe(finding).c_str());
      ++mismatches;
    }
  }
  return mismatches;
}

// Rows that differ between dp4a and mma.
absl::StatusOr<int> PathDifferences(const Folder& folder, const std::string& path) {
  constexpr int32_t kPrompt = 30;
  std::vector<std::vector<float>> logits;
  int32_t vocab = 0;
  for (const int32_t rows : {1, 1000}) {
    ModelOptions options;
    options.matrix_unit_rows = rows;
    WITHY_ASSIGN_OR_RETURN(const OnRunner on, OpenOnRunner(folder, path, {}, options));
    vocab = on.model->info().vocab_size;
    std::mt19937 random(5);
    const auto tokens = RandomTokens(random, kPrompt, vocab);
    WITHY_ASSIGN_OR_RETURN(
        logits.emplace_back(),
        Forward(*on.model, ScratchKv(on.model->info(), kPrompt), PlainRows(tokens, 0)));
  }
  return CountDifferent(logits[0], logits[1], static_cast<size_t>(vocab));
}

// Notes which operations a model has executed.
class SeenOps final : public engine::KernelObserver {
 public:
  SeenOps() : KernelObserver(TickClock()) {}
  void OnKernel(const engine::KernelRun& run) override { seen_.insert(run.op); }
  void OnEmbedded(const engine::PassTag&, int64_t, int64_t) override {}
  size_t count() const { return seen_.size(); }

 private:
  std::set<uint8_t> seen_;
};

absl::StatusOr<size_t> OpsCovered(const Folder& folder) {
  SynthShape shape = SmallShape();
  shape.kv_heads = shape.heads;  // levels cut KV heads
  shape.levels = {60};
  WITHY_ASSIGN_OR_RETURN(const std::string path, Write(folder, shape, "q8_0", "ops.gguf"));
  SeenOps seen;
  ModelOptions options;
  options.kernel_observer = &seen;
  options.hooks.layer_tap = [](int32_t, std::span<const float>) {};
  WITHY_ASSIGN_OR_RETURN(const OnRunner on, OpenOnRunner(folder, path, {}, options));
  const ScratchKv kv(on.model->info(), 32);
  std::mt19937 random(6);
  std::vector<Row> rows = PlainRows(RandomTokens(random, 8, shape.vocab_size), 0);
  for (Row& row : rows) row.level = 0;
  for (size_t i = 0; i + 1 < rows.size(); ++i) rows[i].want_logits = false;
  WITHY_RETURN_IF_ERROR(Forward(*on.model, kv, rows).status());
  const std::vector<int32_t> ancestors = {20};
  const std::vector<Row> tree = {
      {.token = 1, .position = 8, .slot = 20, .context_level = 0, .want_logits = true},
      {.token = 2,
       .position = 9,
       .slot = 17,
       .context_level = 0,
       .want_logits = true,
       .ancestor_slots = ancestors}};
  WITHY_RETURN_IF_ERROR(Forward(*on.model, kv, tree).status());
  return seen.count();
}

struct PassCounts {
  KernelCounts total;
  KernelCounts attention;
  uint64_t launches = 0;
};

// What a pass of `rows` rows asks for, after `context` tokens that the CPU has computed.
absl::StatusOr<PassCounts> CountPass(const Folder& folder, const std::string& path, int32_t context,
                                     int32_t rows) {
  WITHY_ASSIGN_OR_RETURN(const auto cpu, OpenOnCpu(folder, path));
  WITHY_ASSIGN_OR_RETURN(const OnRunner on, OpenOnRunner(folder, path, {.counts = true}));
  const ScratchKv kv(cpu->info(), context + rows);
  std::mt19937 random(7);
  const auto tokens = RandomTokens(random, context + rows, cpu->info().vocab_size);
  const std::span<const int32_t> all(tokens);
  WITHY_RETURN_IF_ERROR(
      engine::Prefill(*cpu, kv, all.first(static_cast<size_t>(context)), 0, nullptr));
  on.gpu->runner().watch().ClearCounts();
  WITHY_RETURN_IF_ERROR(
      Forward(*on.model, kv, PlainRows(all.subspan(static_cast<size_t>(context)), context))
          .status());
  PassCounts pass;
  for (const auto& [name, counts] : on.gpu->runner().watch().counts()) {
    if (name == "attend_tiles") pass.attention.Add(counts);
    pass.total.Add(counts);
    pass.launches += counts.launches;
    std::fprintf(
        stderr,
        "%-12s launches %4llu  MB asked %8.3f  sectors %8.3f  moved %8.3f  conflicts %.3f\n",
        name.c_str(), static_cast<unsigned long long>(counts.launches),
        static_cast<double>(counts.load_bytes + counts.store_bytes) / 1e6,
        static_cast<double>(counts.sectors) * 32 / 1e6,
        static_cast<double>(counts.unique_sectors) * 32 / 1e6,
        counts.shared_requests == 0 ? 1.0
                                    : static_cast<double>(counts.shared_passes) /
                                          static_cast<double>(counts.shared_requests));
  }
  return pass;
}

// Bytes that a decode step of one layer and the head has to move: weights, keys and values, and
// each activation once for each kernel that reads or writes it.
double IdealBytes(const SynthShape& s, double bytes_per_weight, int32_t context) {
  const double q = s.heads * s.head_dim;
  const double kv = s.kv_heads * s.head_dim;
  const double weights =
      s.d_model * (2 * q + 2 * kv + 3.0 * s.d_ff + s.vocab_size) * bytes_per_weight;
  const double keys = (context + 1) * 2 * (kv + 4.0 * s.kv_heads);
  const double activations = 4.0 * (6.0 * s.d_model + 4 * q + 4 * kv + 2.0 * s.d_ff + s.vocab_size);
  return weights + keys + activations;
}

absl::Status MeasureDecode(const Folder& folder, nlohmann::json* out) {
  constexpr int32_t kContext = 300;
  SynthShape shape = *engine::FindSynthShape("tinyllama-1.1b");
  shape.layers = 1;
  shape.vocab_size = 2048;
  WITHY_ASSIGN_OR_RETURN(const std::string path, Write(folder, shape, "q8_0", "1.1b-layer.gguf"));
  WITHY_ASSIGN_OR_RETURN(const PassCounts decode, CountPass(folder, path, kContext, 1));
  const KernelCounts& total = decode.total;
  (*out)["sector_efficiency_decode"] = static_cast<double>(total.load_bytes + total.store_bytes) /
                                       (static_cast<double>(total.sectors) * 32);
  (*out)["bytes_over_ideal_decode"] =
      static_cast<double>(total.unique_sectors) * 32 / IdealBytes(shape, 34.0 / 32, kContext);
  (*out)["bank_conflicts_per_access"] =
      static_cast<double>(total.shared_passes) / static_cast<double>(total.shared_requests);
  // Rows of a prefill share the reading of keys.
  shape.d_ff = 64;
  WITHY_ASSIGN_OR_RETURN(const std::string narrow, Write(folder, shape, "q8_0", "narrow.gguf"));
  WITHY_ASSIGN_OR_RETURN(const PassCounts prefill, CountPass(folder, narrow, 448, 64));
  (*out)["attention_bytes_over_unique_prefill"] =
      static_cast<double>(prefill.attention.sectors) /
      static_cast<double>(prefill.attention.unique_sectors);
  (*out)["attention_bank_conflicts_prefill"] =
      static_cast<double>(prefill.attention.shared_passes) /
      static_cast<double>(prefill.attention.shared_requests);
  uint64_t launches[2];
  for (const int layers : {1, 2}) {
    SynthShape small = SmallShape();
    small.layers = layers;
    WITHY_ASSIGN_OR_RETURN(const std::string file,
                           Write(folder, small, "q8_0", absl::StrCat("layers", layers, ".gguf")));
    WITHY_ASSIGN_OR_RETURN(const PassCounts of, CountPass(folder, file, 4, 1));
    launches[layers - 1] = of.launches;
  }
  (*out)["kernels_per_layer"] = launches[1] - launches[0];
  return absl::OkStatus();
}

absl::Status Main() {
  const Folder folder;
  nlohmann::json out;
  WITHY_ASSIGN_OR_RETURN(out["ops_covered"], OpsCovered(folder));
  Likeness gpu;
  Likeness cpu_targets;
  std::vector<std::string> files;
  for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    WITHY_ASSIGN_OR_RETURN(files.emplace_back(),
                           Write(folder, *engine::FindSynthShape("tiny"), type,
                                 absl::StrCat("random-", type, ".gguf")));
  }
  const size_t random_models = files.size();
  for (const std::string& given : {absl::GetFlag(FLAGS_pocket), absl::GetFlag(FLAGS_real)}) {
    if (!given.empty()) files.push_back(given);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(const Agreement agreement,
                           MeasureAgreement(folder, files[i], i >= random_models));
    gpu.Take(agreement.gpu);
    cpu_targets.Take(agreement.cpu_targets);
  }
  out["logits_cosine_min"] = gpu.all;
  out["logits_cosine_worst_row"] = gpu.worst;
  out["cpu_targets_cosine_min"] = cpu_targets.all;
  out["cpu_targets_cosine_worst_row"] = cpu_targets.worst;
  out["models"] = files.size();
  WITHY_ASSIGN_OR_RETURN(const std::string small,
                         Write(folder, SmallShape(), "q4_0", "small.gguf"));
  out["rows"] = absl::GetFlag(FLAGS_rows);
  WITHY_ASSIGN_OR_RETURN(out["invariance_mismatches"],
                         InvarianceMismatches(folder, small, absl::GetFlag(FLAGS_rows)));
  out["trees"] = absl::GetFlag(FLAGS_trees);
  WITHY_ASSIGN_OR_RETURN(out["tree_mismatches"],
                         TreeMismatches(folder, small, absl::GetFlag(FLAGS_trees)));
  WITHY_ASSIGN_OR_RETURN(out["order_mismatches"], OrderMismatches(folder, small));
  WITHY_ASSIGN_OR_RETURN(const int differences, PathDifferences(folder, files[3]));
  WITHY_ASSIGN_OR_RETURN(const int differences_q4, PathDifferences(folder, files[4]));
  out["exact_dp4a_vs_mma"] = differences + differences_q4;
  WITHY_RETURN_IF_ERROR(MeasureDecode(folder, &out));
  if (const std::string gate = absl::GetFlag(FLAGS_gate); !gate.empty()) {
    std::ifstream in(gate);
    out.update(nlohmann::json::parse(in, nullptr, false));
  } else {
    out["architectures"] = 0;  // no nvcc here
  }
  out["ran_on_gpu"] = false;
  std::printf("%s\n", out.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Proves the executor for GPUs without one, and counts what its kernels move.\n"
      "usage: withy-bench-cuda [--pocket FILE.gguf] [--real FILE.gguf]",
      argc, argv, withy::bench::Main);
}

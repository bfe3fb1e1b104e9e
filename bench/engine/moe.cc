// withy-bench-moe: a mixture of experts that does not fit memory. Decodes the same tokens with
// experts that are read on demand under a budget, and over a plain mapping of the same file, each
// in a process under the same memory limit. Prints a table on stderr and one JSON line last on
// stdout. Needs root for memory cgroups. Neighbours: speculation_wall.cc measures dense models past
// memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/fnv1a.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/samples.h"
#include "bench/service/memory_cgroup.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/synth.h"
#include "engine/weights/packer.h"

ABSL_FLAG(std::string, dir, "build/bench", "where the model is made, and packed");
ABSL_FLAG(std::string, model, "", "a GGUF file with experts; empty: random weights, 3.6 B in Q4_0");
ABSL_FLAG(int, share, 25, "memory limit, in per cent of the packed model");
ABSL_FLAG(int, tokens, 128, "tokens that are decoded and measured");
ABSL_FLAG(int, warm, 64, "tokens before them");
ABSL_FLAG(int, rounds, 3, "interleaved measurements");
ABSL_FLAG(int, threads, 2, "threads");
ABSL_FLAG(std::string, contestant, "", "for the processes that it starts itself");
ABSL_FLAG(uint64_t, budget_bytes, 0, "likewise");

namespace withy::bench {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kSeed = 7;
// What a process takes beside its weights: code, tokenizer, KV, buffers of a pass.
constexpr uint64_t kBesideWeights = uint64_t{64} << 20;

// Where embeddings are as small as what layers add, the routers of random layers would choose the
// same few experts again and again. Those of trained mixtures are balanced, and go by the token
// above all (OpenMoE, arXiv:2402.01739, section 4).
engine::SynthShape MixtureShape() {
  return {.name = "3.6b-a0.5b-by-token",
          .architecture = "qwen3moe",
          .layers = 24,
          .d_model = 1024,
          .heads = 16,
          .kv_heads = 4,
          .head_dim = 64,
          .d_ff = 768,
          .vocab_size = 32000,
          .context_length = 4096,
          .experts = 64,
          .experts_used = 8,
          .embedding_deviation = 64.0f};
}

// Tokens as frequent as words of a text: the r-th about 1 / r of the first.
std::vector<int32_t> TextLikeTokens(int32_t count, int32_t vocabulary) {
  std::mt19937 random(static_cast<uint32_t>(kSeed));
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    const double rank = std::exp(uniform(random) * std::log(static_cast<double>(vocabulary)));
    tokens.push_back(std::clamp(static_cast<int32_t>(rank), 1, vocabulary) - 1);
  }
  return tokens;
}

// Bytes that this process has had read from disks.
uint64_t DiskBytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  for (uint64_t value = 0; file >> key >> value;) {
    if (key == "read_bytes:") return value;
  }
  return 0;
}

// A contestant: decodes the tokens one by one and prints what it took.
absl::Status Decode(const std::string& contestant, const std::string& packed) {
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  options.cache_dir = absl::GetFlag(FLAGS_dir);
  options.max_piece_rows = 1;
  options.weight_budget_bytes = absl::GetFlag(FLAGS_budget_bytes);
  using Place = engine::ModelOptions::WeightPlace;
  if (contestant == "mapped") options.weight_place = Place::kMapped;
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                         engine::Model::Open(packed, options));
  const int32_t warm = absl::GetFlag(FLAGS_warm);
  const int32_t count = warm + absl::GetFlag(FLAGS_tokens);
  const std::vector<int32_t> tokens = TextLikeTokens(count, model->info().vocab_size);
  const engine::ScratchKv kv(model->info(), count);
  const engine::ContextView view = kv.View();
  std::vector<float> logits(static_cast<size_t>(model->info().vocab_size));
  Fnv1a hash;
  engine::WeightStreamStats before;
  uint64_t disk_before = 0;
  int64_t started_ns = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (i == warm) {
      before = model->weight_stats();
      disk_before = DiskBytes();
      started_ns = Clock::Real().SteadyNanos();
    }
    const engine::Row row{
        .token = tokens[static_cast<size_t>(i)], .position = i, .slot = i, .want_logits = true};
    WITHY_RETURN_IF_ERROR(
        model->Forward({.rows = {&row, 1}, .contexts = {&view, 1}}, logits.data()));
    hash.AddBytes({reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)});
  }
  const double seconds =
      static_cast<double>(Clock::Real().SteadyNanos() - started_ns) / kNanosPerSecond;
  const engine::WeightStreamStats after = model->weight_stats();
  const double measured = count - warm;
  const auto share = [&](uint64_t engine::ExpertStats::*member) {
    const uint64_t chosen = after.experts.chosen - before.experts.chosen;
    if (chosen == 0) return 0.0;
    return static_cast<double>(after.experts.*member - before.experts.*member) /
           static_cast<double>(chosen);
  };
  const Json json = {
      {"tokens_per_s", measured / seconds},
      {"hash", absl::StrFormat("%016x", hash.value())},
      {"disk_bytes_per_token", static_cast<double>(DiskBytes() - disk_before) / measured},
      {"read_bytes_per_token",
       static_cast<double>(after.read_bytes - before.read_bytes) / measured},
      {"hit_rate", share(&engine::ExpertStats::in_memory)},
      {"arriving_rate", share(&engine::ExpertStats::arriving)},
      {"token_weight_bytes", model->info().levels.back().weight_bytes}};
  std::printf("%s\n", json.dump().c_str());
  return absl::OkStatus();
}

// Runs a contestant in a process of its own; `limit_bytes` 0: without a limit. Returns its JSON.
absl::StatusOr<std::string> RunContestant(const std::string& contestant, const std::string& packed,
                                          uint64_t limit_bytes, uint64_t budget_bytes) {
  WITHY_RETURN_IF_ERROR(DropFromCache(packed));
  WITHY_ASSIGN_OR_RETURN(const MemoryCgroup cgroup, MemoryCgroup::Create("withy-moe"));
  if (limit_bytes > 0) WITHY_RETURN_IF_ERROR(cgroup.SetLimit(limit_bytes));
  const std::vector<std::string> command = {
      "/proc/self/exe",
      absl::StrCat("--contestant=", contestant),
      absl::StrCat("--model=", packed),
      absl::StrCat("--dir=", absl::GetFlag(FLAGS_dir)),
      absl::StrCat("--budget_bytes=", budget_bytes),
      absl::StrCat("--tokens=", absl::GetFlag(FLAGS_tokens)),
      absl::StrCat("--warm=", absl::GetFlag(FLAGS_warm)),
      absl::StrCat("--threads=", absl::GetFlag(FLAGS_threads))};
  const absl::StatusOr<std::string> output = cgroup.Run(command);
  if (!output.ok()) {
    return Annotate(output.status(),
                    absl::StrCat(contestant, " under a limit of ", limit_bytes, " bytes"));
  }
  return *output;
}

absl::StatusOr<std::string> PackModel() {
  std::string path = absl::GetFlag(FLAGS_model);
  const std::string dir = absl::GetFlag(FLAGS_dir);
  std::filesystem::create_directories(dir);
  if (path.empty()) {
    const engine::SynthShape shape = MixtureShape();
    path = absl::StrCat(dir, "/", shape.name, "-q4_0.gguf");
    if (!std::filesystem::exists(path)) {
      WITHY_RETURN_IF_ERROR(engine::WriteSynthModel(shape, engine::GgmlType::kQ4_0, kSeed, path));
    }
  }
  engine::ThreadPool pool(absl::GetFlag(FLAGS_threads));
  return engine::EnsurePacked(path, dir, pool);
}

absl::Status Compare() {
  WITHY_RETURN_IF_ERROR(CheckFlag("share", absl::GetFlag(FLAGS_share), 1, 99));
  WITHY_ASSIGN_OR_RETURN(const std::string packed, PackModel());
  const uint64_t model_bytes = std::filesystem::file_size(packed);
  const uint64_t limit = model_bytes / 100 * static_cast<uint64_t>(absl::GetFlag(FLAGS_share));
  if (limit <= kBesideWeights) {
    return absl::InvalidArgumentError(
        absl::StrCat("the limit of ", limit, " bytes leaves nothing for weights: a process takes ",
                     kBesideWeights, " beside them: give a larger --share or --model"));
  }
  WITHY_ASSIGN_OR_RETURN(const std::string in_memory, RunContestant("resident", packed, 0, 0));
  const Json resident = Json::parse(in_memory);
  Samples samples;
  bool equal = true;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    WITHY_ASSIGN_OR_RETURN(const std::string on_demand,
                           RunContestant("streamed", packed, limit, limit - kBesideWeights));
    WITHY_ASSIGN_OR_RETURN(const std::string by_pages, RunContestant("mapped", packed, limit, 0));
    const Json streamed = Json::parse(on_demand);
    const Json mapped = Json::parse(by_pages);
    for (const Json& one : {streamed, mapped}) equal = equal && one["hash"] == resident["hash"];
    samples.Add("streamed tokens/s", streamed["tokens_per_s"].get<double>());
    samples.Add("mapped tokens/s", mapped["tokens_per_s"].get<double>());
    samples.Add("ratio",
                streamed["tokens_per_s"].get<double>() / mapped["tokens_per_s"].get<double>());
    samples.Add("hit rate", streamed["hit_rate"].get<double>());
    samples.Add("arriving rate", streamed["arriving_rate"].get<double>());
    samples.Add("streamed bytes/token", streamed["read_bytes_per_token"].get<double>());
    samples.Add("mapped bytes/token", mapped["disk_bytes_per_token"].get<double>());
  }
  samples.Print(stderr);
  const Json json = {{"bench", "moe"},
                     {"model_bytes", model_bytes},
                     {"limit_bytes", limit},
                     {"streamed_equal", equal},
                     {"vs_mmap", samples.Median("ratio")},
                     {"hit_rate", samples.Median("hit rate")},
                     {"arriving_rate", samples.Median("arriving rate")},
                     {"bytes_per_token", samples.Median("streamed bytes/token")},
                     {"mmap_bytes_per_token", samples.Median("mapped bytes/token")},
                     {"token_weight_bytes", resident["token_weight_bytes"]},
                     {"streamed_tokens_per_s", samples.Median("streamed tokens/s")},
                     {"mmap_tokens_per_s", samples.Median("mapped tokens/s")},
                     {"resident_tokens_per_s", resident["tokens_per_s"]}};
  std::printf("%s\n", json.dump().c_str());
  return equal ? absl::OkStatus()
               : absl::InternalError("streamed experts gave other logits than resident ones");
}

absl::Status Main() {
  const std::string contestant = absl::GetFlag(FLAGS_contestant);
  return contestant.empty() ? Compare() : Decode(contestant, absl::GetFlag(FLAGS_model));
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "usage: withy-bench-moe [--model=FILE] [--share=PER_CENT]\n"
      "Decodes a mixture of experts under a memory limit, streamed and mapped. Needs root for "
      "memory cgroups.",
      argc, argv, withy::bench::Main);
}

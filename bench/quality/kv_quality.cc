// withy-bench-kv-quality: how much the formats of stored KV change what a model predicts. Cuts a
// text into windows of 2,048 tokens. The first half of a window is prefilled; then its chunks,
// except the first and the last ones, are encoded in the format under test; then the second half is
// scored. The reference keeps all KV at 16 bits. With --plot, formats are also chosen chunk by
// chunk by every policy, for several ratios; with --tasks, right answers are counted, too. Prints a
// table on stderr and one JSON line last on stdout. Neighbours: kv_scores.h scores a window,
// kv_ratios.h compares policies, kv_tasks.h counts answers.
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/kv_ratios.h"
#include "bench/quality/kv_scores.h"
#include "bench/quality/kv_tasks.h"
#include "bench/samples.h"
#include "engine/model/bundle.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/slow_model.h"
#include "engine/model/synth.h"

ABSL_FLAG(std::string, model, "", "GGUF file");
ABSL_FLAG(std::string, text, "", "file of UTF-8 text, about 8 KiB for each window");
ABSL_FLAG(int, windows, 4, "windows of 2,048 tokens");
ABSL_FLAG(int, threads, 2, "threads");
ABSL_FLAG(std::string, plot, "",
          "compare the policies too, and write PLOT-perplexity.svg and PLOT-divergence.svg");
ABSL_FLAG(std::string, tasks, "",
          "GGUF file of a pocket model: count its right answers over stored KV, too");
ABSL_FLAG(int, task_count, 1200, "held-out prompts that it answers");

namespace withy::bench {
namespace {

using engine::KvFormat;

// How the chunks of the first half are stored, one format after the other.
struct Variant {
  const char* name;
  std::vector<KvFormat> chain;
};
const std::vector<Variant>& Variants() {
  static const auto* variants = new std::vector<Variant>{
      {"q8", {}},
      {"q4", {KvFormat::kQ4}},
      {"q4q2", {KvFormat::kQ4Q2}},
      {"q2", {KvFormat::kQ2}},
      {"q2 of q4", {KvFormat::kQ4, KvFormat::kQ2}},
  };
  return *variants;
}

absl::StatusOr<std::vector<int32_t>> TextTokens(const engine::ModelBundle& bundle,
                                                const std::string& path, int windows) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) {
    return absl::NotFoundError(absl::StrCat("--text: ", path, " cannot be read, or is empty"));
  }
  std::vector<int32_t> tokens = bundle.tokenizer->Encode(text, {.add_bos = false});
  const auto needed = static_cast<size_t>(windows) * kWindow;
  if (tokens.size() < needed) {
    return absl::InvalidArgumentError(absl::StrCat("--text: ", path, " has ", tokens.size(),
                                                   " tokens, ", windows, " windows need ", needed));
  }
  tokens.resize(needed);
  return tokens;
}

void PrintRow(const std::string& name, const Scores& s, const Scores& exact) {
  std::fprintf(stderr, "%-26s %12.4f %12.5f %12.5f %12.6f %12.6f %10.4f\n", name.c_str(),
               std::exp(Mean(s.losses)), PerplexityRatio(s, exact), RatioError(s, exact),
               Summarize(s.divergences).median, Mean(s.divergences),
               static_cast<double>(s.agreed) / static_cast<double>(exact.losses.size()));
}

nlohmann::json ToJson(const Scores& s, const Scores& exact) {
  return {
      {"ppl_ratio", PerplexityRatio(s, exact)},
      {"ppl_ratio_std_error", RatioError(s, exact)},
      {"kld_median", Summarize(s.divergences).median},
      {"kld_mean", Mean(s.divergences)},
      {"top1_agreement", static_cast<double>(s.agreed) / static_cast<double>(exact.losses.size())}};
}

void AddPolicies(const std::vector<KvPolicyLine>& lines, const Scores& exact,
                 nlohmann::json* json) {
  for (const KvPolicyLine& line : lines) {
    for (const KvPolicyLine::Point& point : line.points) {
      PrintRow(absl::StrCat(line.name, " ", std::lround(100 * point.ratio), " %"), point.scores,
               exact);
      nlohmann::json one = ToJson(point.scores, exact);
      one["policy"] = line.name;
      one["ratio"] = point.ratio;
      one["bytes"] = point.bytes;
      (*json)["policies"].push_back(one);
      if (&line == &lines.front() && point.ratio == kHalfOfAll) {
        (*json)["ppl_ratio_50"] =
            PerplexityRatio(point.scores, exact) / (*json)["ppl_ratio_8bit"].get<double>();
      }
    }
  }
}

// Mean error of log-probabilities over 8-bit KV of a random model with biases of 100 on 8 of 64
// dimensions of each key, against double precision.
absl::StatusOr<double> KeyBiasError() {
  constexpr int32_t kTokens = 300;
  WITHY_ASSIGN_OR_RETURN(engine::SynthShape shape, engine::FindSynthShape("tiny"));
  shape.architecture = "qwen2";
  shape.byte_level_bpe = true;
  shape.heads = 4;
  shape.head_dim = 64;
  shape.key_bias = 100;
  shape.key_bias_dims = 8;
  std::string folder = (std::filesystem::temp_directory_path() / "withy-key-bias-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return ErrnoError(absl::StrCat("mkdtemp ", folder));
  const auto measure = [&]() -> absl::StatusOr<double> {
    const std::string path = folder + "/model.gguf";
    WITHY_RETURN_IF_ERROR(engine::WriteSynthModel(shape, engine::GgmlType::kF32, 7, path));
    engine::ModelOptions options;
    options.cache_dir = folder;
    WITHY_ASSIGN_OR_RETURN(const auto model, engine::Model::Open(path, options));
    std::vector<int32_t> tokens;
    std::mt19937 random(7);
    std::vector<engine::Row> rows;
    for (int32_t i = 0; i < kTokens; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(shape.vocab_size)));
      rows.push_back({.token = tokens.back(), .position = i, .slot = i, .want_logits = true});
    }
    WITHY_ASSIGN_OR_RETURN(const std::vector<double> want, engine::SlowLogits(path, tokens));
    const engine::ScratchKv kv(model->info(), kTokens);
    const engine::ContextView view = kv.View();
    std::vector<float> got(want.size());
    WITHY_RETURN_IF_ERROR(model->Forward({.rows = rows, .contexts = {&view, 1}}, got.data()));
    return engine::MeanLogProbError(want, got, static_cast<size_t>(shape.vocab_size));
  };
  const absl::StatusOr<double> error = measure();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return error;
}

absl::Status AddTasks(const std::string& path, nlohmann::json* json) {
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle, engine::OpenBundle(path, options));
  WITHY_ASSIGN_OR_RETURN(const KvTaskScores scores,
                         ScoreKvTasks(bundle, absl::GetFlag(FLAGS_task_count)));
  std::fprintf(stderr,
               "%d prompts of %.0f tokens: right %.2f %% over 8 bits, %.2f %% over stored KV of "
               "%.0f %% of the bytes\n",
               scores.prompts, scores.tokens, 100 * scores.eight, 100 * scores.half,
               100 * scores.bytes_of_half);
  (*json)["task_prompts"] = scores.prompts;
  (*json)["task_bytes_of_8bit"] = scores.bytes_of_half;
  (*json)["accuracy_8bit"] = scores.eight;
  (*json)["accuracy_50"] = scores.half;
  (*json)["accuracy_loss_points_50"] = 100 * (scores.eight - scores.half);
  return absl::OkStatus();
}

nlohmann::json Report(const Scores& exact, const std::vector<Scores>& all) {
  std::fprintf(stderr, "%-26s %12s %12s %12s %12s %12s %10s\n", "KV", "perplexity", "ratio",
               "std. error", "KLD median", "KLD mean", "same top");
  PrintRow("f16", exact, exact);
  nlohmann::json formats = nlohmann::json::object();
  for (size_t i = 0; i < all.size(); ++i) {
    PrintRow(Variants()[i].name, all[i], exact);
    formats[Variants()[i].name] = ToJson(all[i], exact);
  }
  return {{"windows", absl::GetFlag(FLAGS_windows)},
          {"scored_tokens", exact.losses.size()},
          {"ppl_16bit", std::exp(Mean(exact.losses))},
          {"ppl_ratio_8bit", PerplexityRatio(all[0], exact)},
          {"ppl_ratio_4bit", PerplexityRatio(all[1], exact)},
          {"kld_median_4bit_vs_8bit",
           Summarize(all[1].divergences).median / Summarize(all[0].divergences).median},
          {"formats", formats}};
}

absl::Status Main() {
  const int windows = absl::GetFlag(FLAGS_windows);
  WITHY_RETURN_IF_ERROR(CheckFlag("windows", windows, 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("task_count", absl::GetFlag(FLAGS_task_count), 1, 1000000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle,
                         engine::OpenBundle(absl::GetFlag(FLAGS_model), options));
  if (bundle.model->info().context_length < kWindow) {
    return absl::InvalidArgumentError(absl::StrCat("--model: a context length of ",
                                                   bundle.model->info().context_length,
                                                   " is below a window's ", kWindow, " tokens"));
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                         TextTokens(bundle, absl::GetFlag(FLAGS_text), windows));
  const std::string plot = absl::GetFlag(FLAGS_plot);
  Scores exact;
  std::vector<Scores> scores(Variants().size());
  std::vector<KvPolicyLine> lines = plot.empty() ? std::vector<KvPolicyLine>() : KvPolicyLines();
  for (int w = 0; w < windows; ++w) {
    KvWindow window(*bundle.model,
                    std::span(tokens).subspan(static_cast<size_t>(w) * kWindow, kWindow));
    WITHY_RETURN_IF_ERROR(window.Start(&exact));
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto alter = [&](engine::ScratchKv& kv) {
        for (const KvFormat to : Variants()[i].chain) {
          for (int32_t c = kFirstKept; c < kPrefilledChunks - kLastKept; ++c) kv.Encode(c, to);
        }
      };
      WITHY_RETURN_IF_ERROR(window.Score(KvFormat::kQ8, alter, &scores[i]));
    }
    WITHY_RETURN_IF_ERROR(ScorePolicies(*bundle.model, window, static_cast<uint64_t>(w), &lines));
    std::fprintf(stderr, "\rwindow %d of %d", w + 1, windows);
  }
  std::fprintf(stderr, "\r%*s\r", 40, "");
  nlohmann::json json = Report(exact, scores);
  AddPolicies(lines, exact, &json);
  if (!plot.empty()) WITHY_RETURN_IF_ERROR(PlotPolicies(lines, exact, plot));
  if (const std::string tasks = absl::GetFlag(FLAGS_tasks); !tasks.empty()) {
    WITHY_RETURN_IF_ERROR(AddTasks(tasks, &json));
  }
  WITHY_ASSIGN_OR_RETURN(json["key_bias_error"], KeyBiasError());
  std::printf("%s\n", json.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Perplexity and divergence of a model over KV in every format.\n"
      "usage: withy-bench-kv-quality --model FILE.gguf --text FILE",
      argc, argv, withy::bench::Main,
      [] { return !(absl::GetFlag(FLAGS_model).empty() || absl::GetFlag(FLAGS_text).empty()); });
}

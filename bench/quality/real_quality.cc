// withy-bench-real-quality: what the levels of an elastic model keep of it on text: perplexity, how
// often the likeliest token is the whole model's, and the divergence of their probabilities from
// its own. Prints a table on stderr and one JSON line last on stdout.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/quality/real_texts.h"
#include "engine/model/bundle.h"

ABSL_FLAG(std::string, model, "", "elastic GGUF");
ABSL_FLAG(std::string, reference, "",
          "GGUF whose probabilities are compared with; default: the model's own full level");
ABSL_FLAG(std::string, text, "", "text file; default: the documents of --source");
ABSL_FLAG(std::string, source, ".", "the project's sources");
ABSL_FLAG(int, windows, 16, "windows of text, spread evenly");
ABSL_FLAG(int, window_tokens, 256, "tokens a window");
ABSL_FLAG(int, threads, 2, "threads");

namespace withy::bench {
namespace {

// Of one level, summed over all positions.
struct Sums {
  double loss = 0;
  double divergence = 0;
  int64_t agreed = 0;
};

// Natural logarithms of the probabilities.
void ToLogs(std::span<float> logits) {
  const float most = logits[static_cast<size_t>(Best(logits))];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - most));
  const auto log_sum = most + static_cast<float>(std::log(sum));
  for (float& logit : logits) logit -= log_sum;
}

// Adds the window's positions, whose logits become logarithms; `whole` are such already.
void Add(std::span<const int32_t> next, std::span<const float> whole, std::span<float> logits,
         Sums* sums) {
  const size_t width = logits.size() / next.size();
  for (size_t t = 0; t < next.size(); ++t) {
    const std::span<float> logs = logits.subspan(t * width, width);
    const std::span<const float> right = whole.subspan(t * width, width);
    ToLogs(logs);
    sums->loss -= logs[static_cast<size_t>(next[t])];
    sums->agreed += Best(logs) == Best(right) ? 1 : 0;
    for (size_t v = 0; v < width; ++v) {
      sums->divergence += std::exp(right[v]) * (right[v] - logs[v]);
    }
  }
}

absl::StatusOr<std::vector<std::vector<int32_t>>> Windows(const engine::Tokenizer& tokenizer) {
  std::string text;
  std::string name = absl::GetFlag(FLAGS_text);
  if (name.empty()) {
    text = DocumentText(absl::GetFlag(FLAGS_source), size_t{1} << 20);
    name = "--source " + absl::GetFlag(FLAGS_source);
  } else {
    WITHY_ASSIGN_OR_RETURN(text, ReadFile(name));
  }
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  const auto count = static_cast<size_t>(absl::GetFlag(FLAGS_windows));
  const auto length = static_cast<size_t>(absl::GetFlag(FLAGS_window_tokens));
  if (ids.size() < count * length) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": has ", ids.size(), " tokens, and ",
                                                   count, " windows of ", length,
                                                   " need more: give fewer --windows"));
  }
  std::vector<std::vector<int32_t>> windows;
  for (size_t w = 0; w < count; ++w) {
    const auto first = ids.begin() + static_cast<ptrdiff_t>(w * (ids.size() / count));
    windows.emplace_back(first, first + static_cast<ptrdiff_t>(length));
  }
  return windows;
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("windows", absl::GetFlag(FLAGS_windows), 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("window_tokens", absl::GetFlag(FLAGS_window_tokens), 2, 2048));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle model,
                         engine::OpenBundle(absl::GetFlag(FLAGS_model), options));
  std::unique_ptr<engine::Model> other;
  if (const std::string path = absl::GetFlag(FLAGS_reference); !path.empty()) {
    WITHY_ASSIGN_OR_RETURN(other, engine::Model::Open(path, options));
    if (other->info().vocab_size != model.model->info().vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has another vocabulary than the model"));
    }
  }
  const auto width = static_cast<size_t>(model.model->info().vocab_size);
  WITHY_ASSIGN_OR_RETURN(const auto windows, Windows(*model.tokenizer));
  const auto& levels = model.model->info().levels;
  std::vector<Sums> sums(levels.size());
  std::vector<float> whole, logits;
  int64_t positions = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const std::span<const int32_t> first(windows[w].data(), 1);
    const std::span<const int32_t> next = std::span(windows[w]).subspan(1);
    engine::Model& reference = other == nullptr ? *model.model : *other;
    WITHY_RETURN_IF_ERROR(AnswerLogits(reference, first, next, /*level=*/-1, &whole));
    for (size_t t = 0; t < next.size(); ++t) ToLogs(std::span(whole).subspan(t * width, width));
    for (size_t i = 0; i < levels.size(); ++i) {
      WITHY_RETURN_IF_ERROR(
          AnswerLogits(*model.model, first, next, static_cast<int32_t>(i), &logits));
      Add(next, whole, logits, &sums[i]);
    }
    positions += std::ssize(next);
    std::fprintf(stderr, "\rwindow %zu of %zu", w + 1, windows.size());
  }
  nlohmann::ordered_json line = {{"positions", positions}};
  std::fprintf(stderr, "\r%8s %12s %14s %12s\n", "level", "perplexity", "same likeliest",
               "divergence");
  for (size_t i = 0; i < levels.size(); ++i) {
    const auto all = static_cast<double>(positions);
    const double perplexity = std::exp(sums[i].loss / all);
    const double top1 = static_cast<double>(sums[i].agreed) / all;
    const double divergence = sums[i].divergence / all;
    std::fprintf(stderr, "%6d %% %12.3f %14.4f %12.4f\n", levels[i].percent, perplexity, top1,
                 divergence);
    const std::string key = absl::StrCat("level_", levels[i].percent, "_");
    line[key + "ppl"] = perplexity;
    line[key + "top1"] = top1;
    line[key + "kl"] = divergence;
  }
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What the levels of an elastic model keep of it on text.\n"
      "usage: withy-bench-real-quality --model ELASTIC.gguf [--reference PLAIN.gguf] [--text FILE]",
      argc, argv, withy::bench::Main, [] { return !absl::GetFlag(FLAGS_model).empty(); });
}

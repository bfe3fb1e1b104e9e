// withy-bench-real-quality: what each level of an elastic model costs on plain text that it was not
// trained on: perplexity, and how far the level is from the full one. Prints a table on stderr and
// one JSON line last on stdout. Neighbours: quality.cc asks the pocket model's tasks, `withyctl
// score` scores one setting.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/real_texts.h"
#include "engine/model/bundle.h"
#include "engine/session/text_scorer.h"

ABSL_FLAG(std::string, model, "", "GGUF file with levels");
ABSL_FLAG(std::string, reference, "",
          "plain GGUF that all levels, the full one too, are compared with; default: the full "
          "level");
ABSL_FLAG(std::string, text, "", "plain text that is predicted; default: the project's documents");
ABSL_FLAG(std::string, source, ".", "the project's directory: its documents are the default text");
ABSL_FLAG(int, tokens, 4096, "tokens of the text that are computed, from its begin");
ABSL_FLAG(int, window, 512, "tokens of a window, of which the second half is scored");
ABSL_FLAG(int, threads, 2, "threads");

namespace withy::bench {
namespace {

constexpr size_t kMostTextBytes = size_t{16} << 20;

absl::StatusOr<std::string> TextToScore() {
  if (!absl::GetFlag(FLAGS_text).empty()) {
    return ReadRegularFile(absl::GetFlag(FLAGS_text), kMostTextBytes);
  }
  std::string text = DocumentText(absl::GetFlag(FLAGS_source), kMostTextBytes);
  if (!text.empty()) return text;
  return absl::NotFoundError(absl::StrCat("--source ", absl::GetFlag(FLAGS_source),
                                          " has no docs/*.md: name a file with --text"));
}

// The text's first tokens.
absl::StatusOr<engine::ScoredText> EncodeText(const engine::Tokenizer& tokenizer) {
  WITHY_ASSIGN_OR_RETURN(const std::string text, TextToScore());
  engine::ScoredText scored{.ids = tokenizer.Encode(text, {.add_bos = tokenizer.wants_bos()}),
                            .window = absl::GetFlag(FLAGS_window)};
  if (tokenizer.wants_bos()) scored.bos = tokenizer.bos_id();
  const auto most = static_cast<size_t>(absl::GetFlag(FLAGS_tokens));
  scored.ids.resize(std::min(scored.ids.size(), most));
  return scored;
}

absl::Status ScoreLevels() {
  WITHY_RETURN_IF_ERROR(CheckFlag("tokens", absl::GetFlag(FLAGS_tokens), 64, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("window", absl::GetFlag(FLAGS_window), 64, 8192));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle,
                         engine::OpenBundle(absl::GetFlag(FLAGS_model), options));
  const std::vector<engine::LevelInfo>& levels = bundle.model->info().levels;
  if (levels.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::GetFlag(FLAGS_model),
                     ": it has no levels: make it elastic with ./withy elasticize, or with an "
                     "overlay (withyctl models overlay)"));
  }
  WITHY_ASSIGN_OR_RETURN(engine::ScoredText text, EncodeText(*bundle.tokenizer));
  std::unique_ptr<engine::Model> reference;
  std::vector<engine::ScoreContestant> contestants;
  if (const std::string plain = absl::GetFlag(FLAGS_reference); !plain.empty()) {
    WITHY_ASSIGN_OR_RETURN(reference, engine::Model::Open(plain, options));
    contestants.push_back({.model = reference.get()});
  }
  for (size_t level = levels.size(); level-- > 0;) {
    contestants.push_back({.model = bundle.model.get(), .level = static_cast<int32_t>(level)});
  }
  nlohmann::ordered_json line = {{"model", bundle.model->info().name}};
  WITHY_ASSIGN_OR_RETURN(const auto scorer, engine::TextScorer::Create(contestants, std::move(text),
                                                                       engine::ScoreOptions{}));
  while (!scorer->finished()) {
    WITHY_RETURN_IF_ERROR(scorer->Run(nullptr).status());
    std::fprintf(stderr, "\r%3.0f %%", scorer->progress() * 100);
  }
  const std::vector<engine::TextScore> scores = scorer->Scores();
  line["tokens"] = scores.front().losses.size();
  std::fprintf(stderr, "\r%-8s %10s %12s %12s   %zu tokens scored\n", "level", "perplexity",
               "same top-1", "KL, nats", scores.front().losses.size());
  const size_t first = scores.size() - levels.size();
  for (size_t i = 0; i < scores.size(); ++i) {
    const engine::TextScore& score = scores[i];
    if (i < first) {
      line["reference_ppl"] = score.perplexity;
      continue;
    }
    const int32_t percent = levels[levels.size() - 1 - (i - first)].percent;
    const std::string key = absl::StrCat("level_", percent, "_");
    line[key + "ppl"] = score.perplexity;
    if (i > 0) {
      line[key + "top1"] = score.agreed_share;
      line[key + "kl"] = score.divergence;
    }
    std::fprintf(stderr, "%5d %%  %10.3f %12.4f %12.5f\n", percent, score.perplexity,
                 i == 0 ? 1.0 : score.agreed_share, i == 0 ? 0.0 : score.divergence);
  }
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What each level of a model costs on plain text.\n"
      "usage: withy-bench-real-quality --model ELASTIC.gguf [--reference PLAIN.gguf] [--text FILE]",
      argc, argv, withy::bench::ScoreLevels, [] { return !absl::GetFlag(FLAGS_model).empty(); });
}

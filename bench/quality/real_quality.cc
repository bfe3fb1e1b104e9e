// withy-bench-real-quality: what each level of an elastic model costs on plain text that it was not
// trained on, and in which share of multiple-choice questions it is right: perplexity, and how far
// the level is from the full one; KV formats likewise. Prints tables on stderr and one JSON line
// last on stdout. Neighbours: quality.cc asks the pocket model's tasks, `withyctl
// score` scores one setting.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/choices.h"
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
ABSL_FLAG(bool, kv, true, "also the full level behind KV of other formats than 8 bits");
ABSL_FLAG(std::vector<std::string>, contestants, {},
          "NAME=FILE.gguf of models that are asked the same, with or without levels, with commas "
          "between them");
ABSL_FLAG(
    std::vector<std::string>, choices, {},
    "files of multiple-choice questions (ARC, HellaSwag, PIQA, BoolQ, WinoGrande as published, "
    "JSONL), with commas between them");
ABSL_FLAG(int, questions, 1000, "questions of each file that are asked, spread evenly");
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

// One way in which a model predicts, and what its figures are called.
struct Way {
  std::string key;
  engine::ScoreContestant contestant;
};

// The levels, from the full one down; a model without levels is one way.
void AddLevels(const std::string& name, engine::Model& model, std::vector<Way>* ways) {
  const std::vector<engine::LevelInfo>& levels = model.info().levels;
  if (levels.size() < 2) ways->push_back({name, {.model = &model}});
  for (size_t level = levels.size() < 2 ? 0 : levels.size(); level-- > 0;) {
    ways->push_back({absl::StrCat(name, name.empty() ? "" : "_", "level_", levels[level].percent),
                     {.model = &model, .level = static_cast<int32_t>(level)}});
  }
}

// The full level behind KV of each format but 8 bits, which all others have.
void AddKvFormats(engine::Model& model, std::vector<Way>* ways) {
  for (const auto& [key, format] : {std::pair{"kv_16bit", engine::KvFormat::kF16},
                                    {"kv_4bit", engine::KvFormat::kQ4},
                                    {"kv_4_2bit", engine::KvFormat::kQ4Q2},
                                    {"kv_2bit", engine::KvFormat::kQ2}}) {
    ways->push_back({key, {.model = &model, .kv_format = format}});
  }
}

std::vector<engine::ScoreContestant> ContestantsOf(const std::vector<Way>& ways) {
  std::vector<engine::ScoreContestant> contestants;
  for (const Way& way : ways) contestants.push_back(way.contestant);
  return contestants;
}

absl::Status ScoreText(const std::vector<Way>& ways, const engine::Tokenizer& tokenizer,
                       nlohmann::ordered_json* line) {
  WITHY_ASSIGN_OR_RETURN(engine::ScoredText text, EncodeText(tokenizer));
  WITHY_ASSIGN_OR_RETURN(
      const auto scorer,
      engine::TextScorer::Create(ContestantsOf(ways), std::move(text), engine::ScoreOptions{}));
  while (!scorer->finished()) {
    WITHY_RETURN_IF_ERROR(scorer->Run(nullptr).status());
    std::fprintf(stderr, "\r%3.0f %%", scorer->progress() * 100);
  }
  const std::vector<engine::TextScore> scores = scorer->Scores();
  (*line)["tokens"] = scores.front().losses.size();
  std::fprintf(stderr, "\r%-24s %10s %12s %12s   %zu tokens scored\n", "", "perplexity",
               "same top-1", "KL, nats", scores.front().losses.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const engine::TextScore& score = scores[i];
    (*line)[ways[i].key + "_ppl"] = score.perplexity;
    if (i > 0) {
      (*line)[ways[i].key + "_top1"] = score.agreed_share;
      (*line)[ways[i].key + "_kl"] = score.divergence;
    }
    std::fprintf(stderr, "%-24s %10.3f %12.4f %12.5f\n", ways[i].key.c_str(), score.perplexity,
                 i == 0 ? 1.0 : score.agreed_share, i == 0 ? 0.0 : score.divergence);
  }
  return absl::OkStatus();
}

absl::Status ScoreChoices(const std::string& path, const std::vector<Way>& ways,
                          const engine::Tokenizer& tokenizer, nlohmann::ordered_json* line) {
  WITHY_ASSIGN_OR_RETURN(std::vector<ChoiceQuestion> questions, ReadChoices(path));
  questions =
      SpreadChoices(std::move(questions), static_cast<size_t>(absl::GetFlag(FLAGS_questions)));
  WITHY_ASSIGN_OR_RETURN(const std::vector<ChosenShares> shares,
                         AskChoices(questions, tokenizer, ContestantsOf(ways), [](size_t asked) {
                           std::fprintf(stderr, "\r%zu questions", asked);
                         }));
  double chance = 0;
  for (const ChoiceQuestion& question : questions) {
    chance += 1.0 / static_cast<double>(question.choices.size() * questions.size());
  }
  const std::string name = std::filesystem::path(path).stem().string();
  nlohmann::ordered_json& figures = (*line)["choices"][name];
  figures = {{"questions", questions.size()}, {"chance", chance}};
  std::fprintf(stderr, "\r%-24s %10s %12s %12s   %s, %zu questions, chance %.3f\n", "", "right",
               "by byte", "as first", name.c_str(), questions.size(), chance);
  for (size_t i = 0; i < shares.size(); ++i) {
    figures[ways[i].key + "_right"] = shares[i].right;
    figures[ways[i].key + "_right_norm"] = shares[i].right_norm;
    figures[ways[i].key + "_agreed"] = shares[i].agreed;
    std::fprintf(stderr, "%-24s %10.3f %12.3f %12.3f\n", ways[i].key.c_str(), shares[i].right,
                 shares[i].right_norm, shares[i].agreed);
  }
  return absl::OkStatus();
}

absl::Status ScoreLevels() {
  WITHY_RETURN_IF_ERROR(CheckFlag("tokens", absl::GetFlag(FLAGS_tokens), 64, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("window", absl::GetFlag(FLAGS_window), 64, 8192));
  WITHY_RETURN_IF_ERROR(CheckFlag("questions", absl::GetFlag(FLAGS_questions), 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle,
                         engine::OpenBundle(absl::GetFlag(FLAGS_model), options));
  if (bundle.model->info().levels.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::GetFlag(FLAGS_model),
                     ": it has no levels: make it elastic with ./withy elasticize, or with an "
                     "overlay (withyctl models overlay)"));
  }
  std::vector<Way> ways;
  std::vector<std::unique_ptr<engine::Model>> others;
  const auto add = [&](const std::string& name, const std::string& path) -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(others.emplace_back(), engine::Model::Open(path, options));
    AddLevels(name, *others.back(), &ways);
    return absl::OkStatus();
  };
  if (const std::string plain = absl::GetFlag(FLAGS_reference); !plain.empty()) {
    WITHY_RETURN_IF_ERROR(add("reference", plain));
  }
  AddLevels("", *bundle.model, &ways);
  if (absl::GetFlag(FLAGS_kv)) AddKvFormats(*bundle.model, &ways);
  for (const std::string& contestant : absl::GetFlag(FLAGS_contestants)) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(contestant, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--contestants: \"", contestant, "\" is not NAME=FILE.gguf"));
    }
    WITHY_RETURN_IF_ERROR(add(parts.first, parts.second));
  }
  nlohmann::ordered_json line = {{"model", bundle.model->info().name}};
  WITHY_RETURN_IF_ERROR(ScoreText(ways, *bundle.tokenizer, &line));
  for (const std::string& path : absl::GetFlag(FLAGS_choices)) {
    WITHY_RETURN_IF_ERROR(ScoreChoices(path, ways, *bundle.tokenizer, &line));
  }
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What each level of a model costs on plain text.\n"
      "usage: withy-bench-real-quality --model ELASTIC.gguf [--reference PLAIN.gguf] [--text FILE] "
      "[--choices FILE.jsonl,...]",
      argc, argv, withy::bench::ScoreLevels, [] { return !absl::GetFlag(FLAGS_model).empty(); });
}

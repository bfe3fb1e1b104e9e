// withyctl score: how likely a text is to a model, and what a level, a KV format or another file
// costs on it: through the service, or of files here (--model). Neighbours:
// engine/session/text_scorer.h computes; score_text.h prints.
#include "wire/score.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/files.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/prompt_flags.h"
#include "cli/score_text.h"
#include "cli/terminal_text.h"
#include "cli/token_json.h"
#include "cli/utf8.h"
#include "engine/session/scored_text.h"
#include "engine/session/served_model.h"
#include "wire/wire.h"

namespace withy::cli {
namespace {

constexpr absl::Duration kScoreTimeout = absl::Hours(6);
constexpr int32_t kDefaultScoreWindow = 1024;
constexpr size_t kMostScoreFileBytes = size_t{1} << 30;

absl::StatusOr<std::string> ReadText(const std::string& path, bool local) {
  absl::StatusOr<std::string> read = ReadFile(path, kMostScoreFileBytes);
  if (!read.ok()) {
    return absl::Status(
        read.status().code(),
        absl::StrCat(path, " cannot be read: give a text file (", read.status().message(), ")"));
  }
  std::string text = *std::move(read);
  if (text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is empty: give a text, best of some thousand words"));
  }
  if (!local && text.size() > kMaxScoreBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", text.size(), " bytes, and the service takes at most ",
                     kMaxScoreBytes, ": give a part of it, or score it here with --model"));
  }
  WITHY_RETURN_IF_ERROR(CheckUtf8(path, text));
  return text;
}

absl::Status FillSetting(const Args& args, const char* level_flag, const char* kv_flag,
                         v1::ScoreSetting* setting) {
  WITHY_ASSIGN_OR_RETURN(const auto level, args.Integer(level_flag, 1, 100));
  if (level) setting->set_model_level_percent(static_cast<uint32_t>(*level));
  if (!args.Has(kv_flag)) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const v1::KvFormat format,
                         engine::KvFormatFromName(absl::StrCat("--", kv_flag), args.Get(kv_flag)));
  setting->set_kv_format(format);
  return absl::OkStatus();
}

// The request, but for its text; `window_tokens` as the flag says it, 0 = not said.
absl::StatusOr<v1::ScoreRequest> RequestOf(const Args& args) {
  WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"prompt", "model", "against"}));
  v1::ScoreRequest request;
  WITHY_RETURN_IF_ERROR(FillSetting(args, "level", "kv-format", request.mutable_setting()));
  if (args.Has("reference-level") || args.Has("reference-kv") || args.Has("against")) {
    WITHY_RETURN_IF_ERROR(
        FillSetting(args, "reference-level", "reference-kv", request.mutable_reference()));
  }
  WITHY_ASSIGN_OR_RETURN(const auto window,
                         args.Integer("window", engine::kLeastScoreTokens, INT32_MAX));
  if (args.Has("prompt")) {
    if (window) return absl::InvalidArgumentError("give --window or --prompt, not both");
    v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
    message.set_role("user");
    message.set_content(args.Get("prompt"));
  }
  if (window) request.set_window_tokens(static_cast<uint32_t>(*window));
  WITHY_ASSIGN_OR_RETURN(const auto logprobs, args.Integer("logprobs", 0, 20));
  if (logprobs) {
    if (!args.Has("json")) {
      return absl::InvalidArgumentError("--logprobs needs --json, which prints them");
    }
    request.set_report_tokens(true);
    request.set_logprobs(static_cast<uint32_t>(*logprobs));
  }
  return request;
}

// What scoring a text gave.
struct Scored {
  std::string model, reference_model;
  v1::ScoreResult result;
  v1::ScoreResponse tokens;
};

absl::StatusOr<Scored> ScoreByService(const Args& args, v1::ScoreRequest request) {
  WITHY_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFromArgs(args, kScoreTimeout));
  WITHY_ASSIGN_OR_RETURN(const auto client, Client::Open(args));
  WITHY_ASSIGN_OR_RETURN(const v1::ListModelsResponse models, client->ListModels());
  Scored scored;
  for (const v1::ModelDescription& model : models.models()) {
    if (model.role() != "target") continue;
    scored.model = scored.reference_model = model.name();
    if (request.window_tokens() == 0 && !request.has_prompt()) {
      request.set_window_tokens(
          std::min(static_cast<uint32_t>(kDefaultScoreWindow), model.context_length()));
    }
  }
  ProgressBar bar(Clock::Real());
  WITHY_RETURN_IF_ERROR(client->Score(request, timeout, [&](const v1::ScoreResponse& message) {
    bar.Update(message.progress(), "scoring");
    scored.tokens.mutable_tokens()->MergeFrom(message.tokens());
    if (message.has_result()) scored.result = message.result();
  }));
  return scored;
}

absl::StatusOr<std::unique_ptr<engine::ServedModel>> OpenFile(const std::string& path,
                                                              ProgressBar& bar) {
  engine::ServedModelOptions options;
  options.path = path;
  options.model.progress = [&](double done, std::string_view what) { bar.Update(done, what); };
  auto model = engine::OpenServedModel(options);
  if (!model.ok()) return Annotate(model.status(), path);
  for (const std::string& warning : (*model)->bundle.text.warnings) {
    std::cerr << "warning: " << Printable(warning) << "\n";
  }
  return model;
}

absl::Status CheckVocabulary(const std::string& path, const engine::ServedModel& model,
                             const std::string& other_path, const engine::ServedModel& other) {
  if (model.bundle.tokenizer->fingerprint() == other.bundle.tokenizer->fingerprint()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, " and ", other_path, " have different vocabularies (",
      model.bundle.model->info().vocab_size, " and ", other.bundle.model->info().vocab_size,
      " tokens): only files of one tokenizer can be compared"));
}

absl::StatusOr<engine::ScoreContestant> ContestantOf(const v1::ScoreSetting& setting,
                                                     const char* flag, engine::ServedModel& model) {
  engine::ScoreContestant contestant{.model = model.bundle.model.get()};
  WITHY_ASSIGN_OR_RETURN(contestant.level, engine::FindLevel(flag, setting.model_level_percent(),
                                                             model.bundle.model->info()));
  WITHY_ASSIGN_OR_RETURN(contestant.kv_format,
                         engine::ScoreFormatFromWire(flag, setting.kv_format()));
  return contestant;
}

absl::StatusOr<Scored> ScoreFiles(const Args& args, const v1::ScoreRequest& request) {
  ProgressBar bar(Clock::Real());
  const std::string path = args.Get("model");
  WITHY_ASSIGN_OR_RETURN(const auto model, OpenFile(path, bar));
  std::unique_ptr<engine::ServedModel> other;
  if (args.Has("against")) {
    WITHY_ASSIGN_OR_RETURN(other, OpenFile(args.Get("against"), bar));
    WITHY_RETURN_IF_ERROR(CheckVocabulary(path, *model, args.Get("against"), *other));
  }
  std::vector<engine::ScoreContestant> contestants;
  if (request.has_reference()) {
    WITHY_ASSIGN_OR_RETURN(
        contestants.emplace_back(),
        ContestantOf(request.reference(), "--reference-level", other == nullptr ? *model : *other));
  }
  WITHY_ASSIGN_OR_RETURN(contestants.emplace_back(),
                         ContestantOf(request.setting(), "--level", *model));
  std::vector<engine::Segment> prompt;
  if (request.has_prompt()) {
    WITHY_ASSIGN_OR_RETURN(prompt, engine::PromptFromWire(request.prompt(), {}));
  }
  WITHY_ASSIGN_OR_RETURN(engine::ScoredText text,
                         engine::EncodeScoredText(model->encoder, prompt, request.text(), nullptr));
  text.window = static_cast<int32_t>(request.window_tokens());
  if (text.window == 0 && !request.has_prompt()) {
    text.window = kDefaultScoreWindow;
    for (const engine::ScoreContestant& contestant : contestants) {
      text.window = std::min(text.window, contestant.model->info().context_length);
    }
  }
  WITHY_ASSIGN_OR_RETURN(
      const auto scorer,
      engine::TextScorer::Create(contestants, std::move(text),
                                 {.report_tokens = request.report_tokens(),
                                  .top_logprobs = static_cast<int32_t>(request.logprobs())}));
  engine::SamplingParams told;
  told.logprobs = true;
  Scored scored;
  scored.model = model->bundle.model->info().name;
  scored.reference_model = (other == nullptr ? *model : *other).bundle.model->info().name;
  while (!scorer->finished()) {
    WITHY_RETURN_IF_ERROR(scorer->Run(nullptr).status());
    bar.Update(scorer->progress(), "scoring");
    for (const engine::Sample& token : scorer->Fresh()) {
      *scored.tokens.add_tokens() = engine::ToWire(token, told, *model->bundle.tokenizer);
    }
  }
  scored.result = engine::ScoreResultToWire(scorer->Scores());
  return scored;
}

int RunScore(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("score takes one FILE, the text");
  const bool local = args.Has("model");
  if (args.Has("against") && !local) {
    return FailUsage("--against compares files: name the first one with --model");
  }
  auto request = RequestOf(args);
  if (!request.ok()) return FailUsage(ToStd(request.status().message()));
  auto text = ReadText(args.positional()[0], local);
  if (!text.ok()) return Fail(text.status());
  request->set_text(*std::move(text));
  const auto scored = local ? ScoreFiles(args, *request) : ScoreByService(args, *request);
  if (!scored.ok()) return Fail(scored.status());
  if (args.Has("json")) {
    const std::string tokens =
        args.Has("logprobs") ? absl::StrCat(",\"tokens\":", TokensJson(scored->tokens.tokens()))
                             : "";
    std::cout << "{\"result\":" << ToJson(scored->result) << tokens << "}\n";
    return kExitOk;
  }
  std::cout << ScoreSummaryText({.model = scored->model,
                                 .reference_model = scored->reference_model,
                                 .request = *request,
                                 .result = scored->result});
  return kExitOk;
}

}  // namespace

std::vector<Command> ScoreCommands() {
  return {
      {"score", "FILE",
       "perplexity of a text, and what a level, a KV format or another model file costs on it",
       WithConnection(
           {{"level", "PERCENT", "model level that is scored (default 100)"},
            {"kv-format", "FORMAT", "KV format that is scored: q8 (default), q4, q4q2, q2"},
            {"reference-level", "PERCENT", "compare with this level (default 100)"},
            {"reference-kv", "FORMAT", "compare with this KV format (default q8)"},
            {"model", "GGUF", "score with this file, without the service"},
            {"against", "GGUF", "compare with this file; with --model"},
            {"window", "TOKENS",
             "longer texts are cut into windows of so many tokens, of which the second half is "
             "scored (default 1024)"},
            {"prompt", "TEXT", "score the text as the answer to this message, in one window"},
            {"logprobs", "N", "with --json: every scored token with its N likeliest alternatives"},
            {"json", "", "print JSON"},
            TimeoutFlag(kScoreTimeout)}),
       RunScore},
  };
}

}  // namespace withy::cli

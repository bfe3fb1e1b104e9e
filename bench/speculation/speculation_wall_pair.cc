#include "bench/speculation/speculation_wall_pair.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/service/memory_cgroup.h"
#include "bench/speculation/speculation_decoder.h"
#include "bench/speculation/speculation_models.h"
#include "engine/model/bundle.h"
#include "offline/corpus/generator.h"
#include "offline/tlm/prompt_file.h"

namespace withy::bench {
namespace {

engine::ModelOptions PairOptions(const WallRun& run, uint64_t budget_bytes) {
  engine::ModelOptions options;
  options.threads = run.threads;
  options.weight_budget_bytes = budget_bytes;
  if (budget_bytes == 0) options.weight_place = engine::ModelOptions::WeightPlace::kCopied;
  return options;
}

absl::StatusOr<std::vector<Question>> WallQuestions(const WallRun& run,
                                                    const engine::ModelBundle& bundle, int count) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<corpus::Record> prompts,
                         WallPrompts(run, *bundle.tokenizer, count));
  std::vector<Question> questions;
  for (const corpus::Record& record : prompts) {
    WITHY_ASSIGN_OR_RETURN(Question question, Encode(bundle, record));
    questions.push_back(std::move(question));
  }
  return questions;
}

int32_t MostTokens(const std::vector<Question>& questions) {
  size_t most = 0;
  for (const Question& question : questions) most = std::max(most, question.prompt.size());
  return static_cast<int32_t>(most);
}

}  // namespace

absl::StatusOr<std::vector<corpus::Record>> WallPrompts(const WallRun& run,
                                                        const engine::Tokenizer& tokenizer,
                                                        int count) {
  if (!run.prompt_file.empty()) {
    WITHY_ASSIGN_OR_RETURN(tlm::OwnPrompts own, tlm::ReadOwnPrompts(run.prompt_file, count));
    if (own.records.size() == static_cast<size_t>(count)) return std::move(own.records);
    return absl::InvalidArgumentError(absl::StrCat(run.prompt_file, " has ", own.records.size(),
                                                   " prompts; ", count, " are asked for"));
  }
  constexpr int kGroup = 10;
  const corpus::Generator generator(corpus::HeldOutSpec());
  std::vector<corpus::Record> prompts;
  for (int n = 0; n < count; ++n) {
    const int first = n / corpus::kTaskCount * corpus::kTaskCount * kGroup + n % corpus::kTaskCount;
    corpus::Record longest;
    size_t most = 0;
    for (int i = 0; i < kGroup; ++i) {
      corpus::Record record = generator.At(static_cast<uint64_t>(first + i * corpus::kTaskCount));
      const size_t tokens =
          tokenizer.Encode(record.answer, {.add_bos = false, .continues = true}).size();
      if (tokens <= most) continue;
      most = tokens;
      longest = std::move(record);
    }
    prompts.push_back(std::move(longest));
  }
  return prompts;
}

absl::StatusOr<std::vector<WallAnswer>> AnswerInTurns(const engine::ModelBundle& target,
                                                      engine::Model* draft, const WallRun& run,
                                                      const std::vector<WallWay>& ways) {
  constexpr int32_t kFirstPrompts = 2;  // asked before, so that drafts' confidence is known
  const int32_t asked = run.prompts + run.open_prompts;
  WITHY_ASSIGN_OR_RETURN(const std::vector<Question> questions,
                         WallQuestions(run, target, asked + kFirstPrompts));
  WITHY_ASSIGN_OR_RETURN(const auto decoder,
                         PairDecoder::Create({.target = *target.model,
                                              .tokenizer = *target.tokenizer,
                                              .chat = target.chat,
                                              .draft = draft},
                                             MostTokens(questions) + run.answer_tokens));
  for (size_t first = static_cast<size_t>(asked); first < questions.size(); ++first) {
    for (const WallWay& way : ways) {
      if (way.decode.speculation == policy::SpeculationMode::kOff) continue;
      WITHY_RETURN_IF_ERROR(
          decoder->Answer(questions[first].messages, run.answer_tokens, way.decode).status());
    }
  }
  std::vector<WallAnswer> answers;
  for (size_t prompt = 0; prompt < static_cast<size_t>(asked); ++prompt) {
    const bool open = prompt >= static_cast<size_t>(run.prompts);
    for (size_t i = 0; i < ways.size(); ++i) {
      const WallWay& way = ways[(prompt + i) % ways.size()];  // none is always first
      WITHY_ASSIGN_OR_RETURN(
          DecodedAnswer answer,
          decoder->Answer(questions[prompt].messages, run.answer_tokens, way.decode, open));
      answers.push_back({way.name, static_cast<int32_t>(prompt), std::move(answer)});
    }
  }
  return answers;
}

absl::StatusOr<WallResult> RunPair(const WallRun& run) {
  std::vector<WallWay> ways;
  for (const std::string& name : run.ways) {
    WITHY_ASSIGN_OR_RETURN(WallWay way, ParseWay(name));
    ways.push_back(std::move(way));
  }
  std::optional<engine::ModelBundle> draft;
  if (std::any_of(ways.begin(), ways.end(), [](const WallWay& way) { return way.uses_draft(); })) {
    WITHY_ASSIGN_OR_RETURN(draft, engine::OpenBundle(run.draft, PairOptions(run, 0)));
  }
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle target,
                         engine::OpenBundle(run.packed, PairOptions(run, run.budget_bytes)));
  if (draft.has_value()) {
    WITHY_RETURN_IF_ERROR(
        CheckVocabularies(target, *draft, {.target = run.packed, .draft = run.draft}));
  }
  WallResult result;
  if (!run.cgroup.empty()) ForgetCgroupPeak(run.cgroup);
  WITHY_ASSIGN_OR_RETURN(
      result.answers,
      AnswerInTurns(target, draft.has_value() ? draft->model.get() : nullptr, run, ways));
  result.token_s = SumOf(result.answers).token_s();
  if (!run.cgroup.empty()) result.memory_bytes = CgroupPeak(run.cgroup);
  const engine::WeightStreamStats stats = target.model->weight_stats();
  result.weights_bytes = stats.resident_bytes + stats.buffer_bytes;
  result.pass_bytes = stats.pass_bytes;
  result.locked_bytes = static_cast<int64_t>(stats.locked_bytes);
  result.direct = stats.direct;
  return result;
}

}  // namespace withy::bench

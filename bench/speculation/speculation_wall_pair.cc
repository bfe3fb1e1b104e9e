#include "bench/speculation/speculation_wall_pair.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/service/memory_cgroup.h"
#include "bench/speculation/speculation_decoder.h"
#include "engine/model/bundle.h"
#include "offline/corpus/generator.h"

namespace withy::bench {
namespace {

// Passes of these many rows are timed first.
constexpr std::array<int32_t, 4> kTimedRows = {1, 16, 48, 128};

engine::ModelOptions PairOptions(const WallRun& run, uint64_t budget_bytes) {
  engine::ModelOptions options;
  options.threads = run.threads;
  options.weight_budget_bytes = budget_bytes;
  if (budget_bytes == 0) options.weight_place = engine::ModelOptions::WeightPlace::kCopied;
  return options;
}

absl::StatusOr<std::vector<Question>> WallQuestions(const engine::ModelBundle& bundle, int count) {
  constexpr int kGroup = 10;
  const corpus::Generator generator(corpus::HeldOutSpec());
  std::vector<Question> questions;
  for (int n = 0; n < count; ++n) {
    const int first = n / corpus::kTaskCount * corpus::kTaskCount * kGroup + n % corpus::kTaskCount;
    Question longest;
    for (int i = 0; i < kGroup; ++i) {
      const auto index = static_cast<uint64_t>(first + i * corpus::kTaskCount);
      WITHY_ASSIGN_OR_RETURN(Question question, Encode(bundle, generator.At(index)));
      if (question.answer.size() > longest.answer.size()) longest = std::move(question);
    }
    questions.push_back(std::move(longest));
  }
  return questions;
}

}  // namespace

absl::StatusOr<std::vector<WallAnswer>> AnswerInTurns(const engine::ModelBundle& target,
                                                      engine::Model* draft, const WallRun& run,
                                                      const std::vector<WallWay>& ways,
                                                      PassCosts* costs) {
  constexpr int32_t kFirstPrompts = 2;  // asked before, so that drafts' confidence is known
  const int32_t asked = run.prompts + run.open_prompts;
  WITHY_ASSIGN_OR_RETURN(const std::vector<Question> questions,
                         WallQuestions(target, asked + kFirstPrompts));
  PairDecoder decoder(*target.model, draft, target.tokenizer->end_of_generation_ids());
  const bool weighed =
      std::any_of(ways.begin(), ways.end(), [](const WallWay& way) { return way.decode.weighed; });
  if (weighed) {
    WITHY_ASSIGN_OR_RETURN(const PassCosts measured, decoder.Calibrate(kTimedRows));
    if (costs != nullptr) *costs = measured;
  }
  for (size_t first = static_cast<size_t>(asked); weighed && first < questions.size(); ++first) {
    WITHY_RETURN_IF_ERROR(decoder.Begin(questions[first].prompt, run.answer_tokens));
    for (const WallWay& way : ways) {
      if (way.decode.weighed) WITHY_RETURN_IF_ERROR(decoder.Answer(way.decode).status());
    }
  }
  std::vector<WallAnswer> answers;
  for (size_t prompt = 0; prompt < static_cast<size_t>(asked); ++prompt) {
    const bool open = prompt >= static_cast<size_t>(run.prompts);
    WITHY_RETURN_IF_ERROR(decoder.Begin(questions[prompt].prompt, run.answer_tokens, open));
    for (size_t i = 0; i < ways.size(); ++i) {
      const WallWay& way = ways[(prompt + i) % ways.size()];  // none is always first
      WITHY_ASSIGN_OR_RETURN(DecodedAnswer answer, decoder.Answer(way.decode));
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
  if (draft.has_value() && target.tokenizer->fingerprint() != draft->tokenizer->fingerprint()) {
    return absl::InvalidArgumentError(absl::StrCat("the draft ", run.draft,
                                                   " has another vocabulary than ", run.packed,
                                                   ": choose a draft with the target's tokenizer"));
  }
  WallResult result;
  WITHY_ASSIGN_OR_RETURN(
      result.answers, AnswerInTurns(target, draft.has_value() ? draft->model.get() : nullptr, run,
                                    ways, &result.costs));
  result.token_s = SumOf(result.answers).token_s();
  if (!run.cgroup.empty()) result.memory_bytes = CgroupMemory(run.cgroup);
  const engine::WeightStreamStats stats = target.model->weight_stats();
  result.weights_bytes = stats.resident_bytes + stats.buffer_bytes;
  result.pass_bytes = stats.pass_bytes;
  result.locked_bytes = static_cast<int64_t>(stats.locked_bytes);
  result.direct = stats.direct;
  return result;
}

}  // namespace withy::bench

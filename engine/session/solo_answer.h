// Answers one request completely with private KV: no context, batch or store. Used by draft_worker
// and benchmarks; model_worker schedules many calls instead.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "engine/session/answer_stream.h"
#include "engine/session/conversation.h"
#include "engine/session/segment.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Steady times of an answer, in nanoseconds.
struct AnswerTimes {
  int64_t started = 0;
  int64_t first_token = 0;  // 0 = none
  int64_t last_token = 0;
};

// One sampled token and the text that it completed.
struct AnswerDelta {
  std::string text;
  std::optional<Sample> token;  // nullopt for the text at the end that has no token
};

struct SoloResult {
  FinishReason reason = FinishReason::kNone;
  std::string text;
  std::vector<ToolCall> tool_calls;  // in `text`; without ids
  int32_t prompt_tokens = 0;
  std::vector<Sample> tokens;
  AnswerTimes times;
};

struct SoloHooks {
  std::function<void(const AnswerDelta&)> on_delta;
  // Asked before every piece and step and while the prompt is encoded. Returning true ends the
  // answer as cancelled.
  std::function<bool()> cancelled;
  // Called after every Forward with its rows, start and end in steady nanoseconds.
  std::function<void(int32_t rows, int64_t started_ns, int64_t ended_ns)> on_step;
  // Called after every prefill piece except the last: prompt tokens computed so far, and in all.
  std::function<void(int32_t computed, int32_t tokens)> on_prompt = nullptr;
  // Names each pass for the model's kernel observer. Null: passes have no name.
  std::function<PassTag()> next_pass = nullptr;
};

// A sampler that never penalises tokens that end an answer. Errors: as Sampler::Create.
absl::StatusOr<Sampler> MakeSampler(const SamplingParams& params, const Tokenizer& tokenizer);

// Index into info.levels of the level with this per cent; -1 (the full model) if there is none.
int32_t LevelIndex(const ModelInfo& info, int32_t percent);

struct SoloOptions {
  int32_t window = 0;       // tokens; all positions are below it
  int32_t piece_rows = 64;  // prompt tokens per prefill piece; `cancelled` is asked between pieces
};

// `request` must be validated. Errors: those of ConversationEncoder::EncodePrompt,
// Sampler::Create, Model::Forward.
absl::StatusOr<SoloResult> AnswerAlone(Model& model, const ConversationEncoder& encoder,
                                       const AnswerRequest& request, const SoloOptions& options,
                                       const SoloHooks& hooks, Clock& clock);

}  // namespace withy::engine

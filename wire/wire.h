// Conversions between the contract's messages (no services) and the structs of engine/session, for
// both workers (ModelWorker and DraftWorker).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/session/answer_stream.h"
#include "engine/session/segment.h"
#include "engine/session/served_model.h"
#include "engine/session/solo_answer.h"
#include "engine/session/weight_guard.h"
#include "engine/tokenizer/tokenizer.h"
#include "wire/answer_defaults.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::engine {

// Segments that a prompt adds to a conversation. `kept` has one entry per message, or none. Errors:
// INVALID_ARGUMENT (no form set; `kept` has the wrong length).
absl::StatusOr<std::vector<Segment>> PromptFromWire(
    const v1::Prompt& prompt, const google::protobuf::RepeatedPtrField<v1::KeptSpans>& kept);

Truncation TruncationFromWire(v1::Truncation truncation);

// Converts a request and fills its defaults; it is not validated against a model. `fallback_seed`
// replaces an unset seed; `window` limits the default of max_tokens. Errors: INVALID_ARGUMENT
// naming the field.
absl::StatusOr<AnswerRequest> RequestFromWire(const v1::RunRequest& request,
                                              const AnswerDefaults& defaults,
                                              uint64_t fallback_seed, int32_t window);

Segment SegmentFromWire(const v1::Segment& segment);
v1::Segment ToWire(const Segment& segment);

v1::FinishReason ToWire(FinishReason reason);
// Sets `finished`'s reason, text and calls. Calls have their ids.
void FillAnswer(FinishReason reason, const std::string& text, std::span<const ToolCall> calls,
                v1::GenerateFinished* finished);
// Includes log-probabilities if `params` asks for them.
v1::Token ToWire(const Sample& sample, const SamplingParams& params, const Tokenizer& tokenizer);
v1::GenerateDelta ToWire(const AnswerDelta& delta, const SamplingParams& params,
                         const Tokenizer& tokenizer);

// `config` has its defaults filled in. Packed files are kept under `state_dir`.
ServedModelOptions OptionsFromWire(const v1::ModelConfig& config, const std::string& state_dir);

// Without callbacks. `config` has its defaults filled in.
WeightGuardOptions GuardOptionsFromWire(const v1::ModelConfig& config,
                                        const std::string& state_dir);

// Share of the time of passes that recording their kernels may take, see KernelSpans::set_share.
// `config` has its defaults filled in.
double KernelSpanShare(const v1::ProfilerConfig& config);

// `role` is "target" or "draft"; `window` is the served context length in tokens.
v1::ModelDescription Describe(const ModelInfo& info, std::string_view role, int32_t window,
                              const AnswerDefaults& defaults);

// Limits how often a prompt's progress is reported. Not thread-safe.
class ProgressPace {
 public:
  // Returns true at most once per kIntervalNs, first after one interval.
  bool Due(int64_t now_ns) {
    if (last_ns_ == 0) last_ns_ = now_ns;
    if (now_ns - last_ns_ < kIntervalNs) return false;
    last_ns_ = now_ns;
    return true;
  }

 private:
  static constexpr int64_t kIntervalNs = 250 * kNanosPerMilli;
  int64_t last_ns_ = 0;
};

// For people: that an answer was cut after `tokens` tokens, and the remedy. "" if it was not cut.
std::string CutText(FinishReason reason, size_t tokens);

}  // namespace withy::engine

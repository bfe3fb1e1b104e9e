// Between the wire's messages (no services) and the structs of engine/session: what both workers
// need to speak ModelWorker's and DraftWorker's contract.
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
#include "engine/tokenizer/tokenizer.h"
#include "wire/answer_defaults.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::engine {

// The segments that a prompt adds to a conversation. `kept` has an entry a message, or none.
// Errors: INVALID_ARGUMENT (no form set, kept of another length).
absl::StatusOr<std::vector<Segment>> PromptFromWire(
    const v1::Prompt& prompt, const google::protobuf::RepeatedPtrField<v1::KeptSpans>& kept);

// The request with its defaults filled in; not yet validated against a model. `fallback_seed` is
// used when it has none; `window` bounds the default of max_tokens. Errors: INVALID_ARGUMENT naming
// the field.
absl::StatusOr<AnswerRequest> RequestFromWire(const v1::RunRequest& request,
                                              const AnswerDefaults& defaults,
                                              uint64_t fallback_seed, int32_t window);

Segment SegmentFromWire(const v1::Segment& segment);
v1::Segment ToWire(const Segment& segment);

v1::FinishReason ToWire(FinishReason reason);
// With log-probabilities where `params` asks for them.
v1::Token ToWire(const Sample& sample, const SamplingParams& params, const Tokenizer& tokenizer);
v1::GenerateDelta ToWire(const AnswerDelta& delta, const SamplingParams& params,
                         const Tokenizer& tokenizer);

// What `config` (with its defaults filled in) asks for; packed files are kept under `state_dir`.
ServedModelOptions OptionsFromWire(const v1::ModelConfig& config, const std::string& state_dir);

// `role` is "target" or "draft"; `window` the context length that is served.
v1::ModelDescription Describe(const ModelInfo& info, std::string_view role, int32_t window,
                              const AnswerDefaults& defaults);

// When a prompt's progress is due to be told again. Not thread-safe.
class ProgressPace {
 public:
  // True at most every kIntervalNs, and not before the first of them has passed.
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

// For people: that an answer of so many tokens was cut, and what helps; "" where it was not.
std::string CutText(FinishReason reason, size_t tokens);

}  // namespace withy::engine

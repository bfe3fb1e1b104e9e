// The answer of one call: its tokens are picked here, it ends here, and this says what the record
// and the caller get of it. Neighbour: session.h has the prompt, the levels and the KV. No threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/output/output_constraint.h"
#include "engine/sampling/sampler.h"
#include "engine/session/answer_stream.h"
#include "engine/session/segment.h"
#include "engine/session/solo_answer.h"
#include "serving/call/call.h"
#include "telemetry/recorder.h"

namespace withy::serving {

// Owned by the call's session; not thread-safe. What is passed to the constructor outlives it.
class CallAnswer {
 public:
  // `recorder`: of the spans inside sampling; null: none.
  CallAnswer(const engine::Tokenizer& tokenizer, const CallRequest& request,
             engine::Sampler sampler, engine::AnswerTools tools, telemetry::Recorder* recorder);

  // Behind this prompt.
  void BeginBehind(std::span<const int32_t> prompt);
  // The prompt ends inside of a thought, which the answer goes on with.
  void BeginInThought() {
    begins_in_thought_ = true;
    constraint_->BeginInThought();
  }
  // Picks the next token from its logits, [vocab], and appends it to `ids`, prompt and answer so
  // far, unless it only ends the answer. `level_percent`: that the logits were computed at; with
  // `window` ids the answer is over. Errors: as Sampler::Pick and OutputConstraint::Mask.
  absl::StatusOr<engine::AnswerDelta> Pick(std::span<const float> logits, int32_t level_percent,
                                           int32_t window, std::vector<int32_t>* ids);
  // Ends the answer for a reason from outside; returns what was held back.
  engine::AnswerDelta Finish(engine::FinishReason reason);

  bool finished() const { return stream_.finished(); }
  int32_t tokens() const { return static_cast<int32_t>(tokens_.size()); }
  const engine::SamplingParams& sampling() const { return sampler_.params(); }
  // What may come next in the form that the call asks for. For looking ahead, which leaves it as it
  // is.
  engine::OutputConstraint& constraint() const { return *constraint_; }
  // What the record keeps of it. `unix_s`: the present time.
  engine::Segment RecordSegment(int32_t level_percent, int64_t unix_s) const;
  // Sets what of the outcome is the answer's.
  void Describe(CallOutcome* outcome) const;

 private:
  void RecordPick(const engine::PickTimes& times) const;
  engine::AnswerParts InParts() const;

  const engine::Tokenizer& tokenizer_;
  const CallRequest& request_;
  telemetry::Recorder* const recorder_;
  engine::Sampler sampler_;
  engine::AnswerTools tools_;
  engine::AnswerStream stream_;
  const std::unique_ptr<engine::OutputConstraint> constraint_;
  bool begins_in_thought_ = false;
  std::vector<engine::Sample> tokens_;
  std::vector<int32_t> levels_;  // that tokens were made at, in the order of their use
};

}  // namespace withy::serving

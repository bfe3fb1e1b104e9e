// One call from outside, as the core sees it: what was asked, who is told, and what came out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/session/answer_stream.h"
#include "engine/session/segment.h"
#include "engine/session/solo_answer.h"
#include "policy/call/pace.h"
#include "policy/call/turn.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/speculation.h"

namespace withy::serving {

struct CallRequest {
  uint64_t call_id = 0;
  std::string app_id;
  std::string context_id;  // empty = stateless
  engine::AnswerRequest answer;
  std::string request_id;
  std::string request_digest;
  std::string decision;  // wire bytes, kept with the result
  policy::Turn turn;     // deadline and priority
  policy::CallTargets targets;
  policy::PaceOptions pace_options;
  int32_t pruned_words = 0;             // left out of the prompt; carried into its usage
  int32_t prompt_tokens = 0;            // as the orchestrator counted them; 0 = not known
  int32_t whole_tokens = 0;             // likewise, with the context before it
  bool report_progress = false;         // CallSink::Progress
  bool record_without_thought = false;  // RunRequest
  policy::SpeculationMode speculation = policy::SpeculationMode::kAuto;
  // Not an app's call: the context's KV is computed again at answer.level_percent; nothing is
  // generated and the record does not change.
  bool rebuild = false;
};

struct CallAccepted {
  int32_t reused_tokens = 0;
  int32_t prefill_tokens = 0;
  int32_t queue_position = 0;  // calls before it when it arrived
};

// Durations are in nanoseconds and do not overlap.
struct CallTimes {
  int64_t arrived_ns = 0;  // steady time
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
  int64_t queue = 0;
  int64_t load = 0;
  int64_t prefill = 0;
  int64_t decode = 0;
  int64_t commit = 0;
};

struct CallUsage {
  int32_t context_tokens = 0;
  int32_t prompt_tokens = 0;
  int32_t reused_tokens = 0;
  int32_t compressed_kv_tokens = 0;   // as in types.proto
  int32_t other_level_kv_tokens = 0;  // likewise
  int32_t prefilled_tokens = 0;
  int32_t pruned_words = 0;
};

// What speculation did for a call's answer. By policy::DraftSourceKind.
struct SpeculationStats {
  std::array<int32_t, policy::kDraftSourceKinds> drafted = {};   // tokens that were verified
  std::array<int32_t, policy::kDraftSourceKinds> accepted = {};  // of these
  int32_t window_drafted = 0;  // tokens drafted while a step waited for weights
  int32_t window_kept = 0;     // of these, tokens that the next step's tree began with
  int32_t target_passes = 0;   // decode steps
  double plain_ms = 0;         // that its tokens would have taken without, as estimated
  double took_ms = 0;          // that they took, drafting included
  int64_t draft_ns = 0;
  int64_t verify_ns = 0;  // of passes with drafts
};

struct CallOutcome {
  engine::FinishReason reason = engine::FinishReason::kNone;
  std::string text;
  bool begins_in_thought = false;            // of `text`, which has its end then, or is all thought
  std::vector<engine::ToolCall> tool_calls;  // read out of `text`
  engine::SamplingParams sampling;
  std::vector<engine::Sample> tokens;
  std::vector<int32_t> levels_percent;  // that tokens were made at, in the order of their use
  int32_t decided_percent = 100;        // level that the call came with
  CallUsage usage;
  SpeculationStats speculation;
  CallTimes times;
};

// Receives a call's events. The scheduler's threads call the methods, one at a time; they must not
// block. Finished or Failed is the last one.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void Accepted(const CallAccepted& accepted) = 0;
  // `computed` of the prompt's `tokens` that are not reused have been computed. Called between the
  // prompt's pieces when the request asks for it.
  virtual void Progress(int32_t computed, int32_t tokens) = 0;
  // Tokens from the next delta on are computed at this level.
  virtual void LevelChanged(int32_t level_percent) = 0;
  // The sink may keep a delta back until the next one or Flush.
  virtual void Delta(const engine::AnswerDelta& delta) = 0;
  // The next delta may take long: what was kept back is to be sent.
  virtual void Flush() = 0;
  virtual void Finished(const CallOutcome& outcome) = 0;
  virtual void Failed(const absl::Status& status) = 0;
  // False while the reader is behind: the call then pauses.
  virtual bool HasRoom() const = 0;
};

}  // namespace withy::serving

// The scheduler's own view of a call and of a step. For scheduler_api.cc (what other threads ask),
// scheduler.cc (the life of calls) and scheduler_step.cc (what they compute together); nobody else
// includes it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/session/solo_answer.h"
#include "model_worker/scheduler.h"

namespace withy::model_worker {

// Rows of a prompt whose blocks are claimed before they are computed.
inline constexpr int32_t kPromptAhead = 2 * policy::kRowsWithoutAnswers;

// Tokens of a prompt that has not been encoded yet.
inline int64_t EstimatedTokens(const engine::AnswerRequest& request) {
  constexpr size_t kBytesPerToken = 4;
  size_t bytes = 0;
  for (const engine::Segment& segment : request.prompt) bytes += segment.text.size();
  return static_cast<int64_t>(bytes / kBytesPerToken);
}

inline absl::Status Draining() {
  return absl::UnavailableError("model_worker is shutting down: retry");
}

struct Scheduler::Call {
  ~Call() { *over = true; }

  Ticket ticket = 0;
  CallRequest request;
  std::shared_ptr<CallSink> sink;  // shared with the RPC, which may end first
  policy::CallOrder order;
  int32_t queue_position = 0;
  Phase phase = Phase::kWaiting;
  std::shared_ptr<Lease> lease;
  std::shared_ptr<Session> session;  // shared with the office task that commits it
  CallTimes times;
  int64_t phase_since_ns = 0;
  int64_t paused_since_ns = 0;  // 0 = its reader keeps up
  policy::Pacer pacer;
  bool level_changed = false;  // and no token of the new one has been told
  uint32_t steps = 0;
  bool unanswered = false;  // ended before its answer: what is committed is KV alone
  // What is committed is no result: a retry answers anew, in its place.
  bool broken_off = false;
  absl::Status ended;  // not OK: what its caller is told in the place of the outcome
  // True once there is no such call any more: the office, which may still prepare it, then stops.
  const std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
};

// One step's rows and whose they are. Stays where it is while it is computed.
struct Scheduler::Batch {
  struct Part {
    Call* call;
    int32_t rows;
    bool decode;
    int32_t logits_rows;  // that it wants
  };
  // Null: there is none, or there are several.
  const Part* OnlyPrompt() const {
    const Part* prompt = nullptr;
    for (const Part& part : parts) {
      if (part.decode) continue;
      if (prompt != nullptr) return nullptr;
      prompt = &part;
    }
    return prompt;
  }

  policy::StepPlan plan;
  std::vector<Part> parts;  // one for each of the plan's entries
  std::vector<engine::Row> rows;
  int32_t logits_rows = 0;
  std::vector<engine::ContextView> views;

  std::unique_ptr<engine::Pass> pass;  // null: not begun
  int64_t started_ns = 0;
  int64_t computed_ns = 0;  // that it has taken so far
  bool preempted = false;   // another step was computed in its middle
  std::optional<policy::SlowStepWatch> watch;
  bool given_up = false;  // its prompt begins again at a lower level
};

}  // namespace withy::model_worker

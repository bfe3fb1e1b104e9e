// A call on the engine thread, from the queue to its end. Neighbours: call_registry.h makes it,
// call_lifecycle.h owns it, call_leases.h and step_runner.h move it on; nobody else includes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "policy/call/pace.h"
#include "policy/call/turn.h"
#include "serving/call/call.h"
#include "serving/session/lease.h"
#include "serving/session/session.h"
#include "serving/speculation/call_drafts.h"

namespace withy::serving {

// Names a call from its submission to its end.
using Ticket = uint64_t;

enum class CallPhase { kWaiting, kOpening, kRunning, kCommitting };

struct Call {
  ~Call() { *over = true; }

  Ticket ticket = 0;
  CallRequest request;
  std::shared_ptr<CallSink> sink;  // shared with the RPC, which may end first
  policy::Turn turn;
  int32_t queue_position = 0;
  CallPhase phase = CallPhase::kWaiting;
  std::shared_ptr<Lease> lease;
  std::shared_ptr<Session> session;  // shared with the background task that commits it
  CallTimes times;
  int64_t phase_since_ns = 0;
  int64_t paused_since_ns = 0;        // 0 = its reader keeps up
  std::vector<LoadEvent> early_load;  // came before its session
  policy::Pacer pacer;
  std::unique_ptr<CallDrafts> drafts;  // null: nothing was drafted yet
  bool level_changed = false;          // and no token of the new level has been told
  uint32_t steps = 0;
  bool unanswered = false;  // ended before its answer: its commit has KV and no segments
  // Its commit is no result of its request_id: a retry answers anew, in its place.
  bool broken_off = false;
  absl::Status ended;  // not OK: its caller is told this instead of the outcome
  // True once the call is gone: a background task that still prepares it then stops.
  const std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
};

using Calls = std::map<Ticket, std::unique_ptr<Call>>;

// Tokens of a prompt that has not been encoded yet.
inline int64_t EstimatedTokens(const engine::AnswerRequest& request) {
  constexpr size_t kBytesPerToken = 4;
  size_t bytes = 0;
  for (const engine::Segment& segment : request.prompt) {
    bytes += segment.text.size() + segment.tools_json.size();
  }
  return static_cast<int64_t>(bytes / kBytesPerToken);
}

inline absl::Status Draining() {
  return absl::UnavailableError("model_worker is shutting down: retry");
}

}  // namespace withy::serving

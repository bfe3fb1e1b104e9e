// All calls of the orchestrator: who was admitted, who waits, who runs, and how much work they
// still have. Bounded. Neighbours: queue_order.h says who goes first, slack.h whether the running
// calls bear it, latency_model.h predicts from the Load given here, generate.cc walks each call
// through its states.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/call_control.h"
#include "orchestrator/latency_model.h"
#include "orchestrator/queue_order.h"
#include "orchestrator/slack.h"

namespace withy::orchestrator {

// Which worker answers.
enum class Lane { kTarget = 0, kDraft = 1 };
inline constexpr int kLanes = 2;

struct CallTableOptions {
  uint32_t limit = 64;                       // calls of all lanes, in any state
  std::array<uint32_t, kLanes> slots{8, 8};  // calls a lane runs at once
  double piece_ms = 50;
};

// What happened around one call while it decoded.
struct DecodeSurroundings {
  double mean_rows = 1;           // calls that decoded, itself included, averaged over time
  double other_depth_tokens = 0;  // of the contexts of the other ones, together, likewise
  double foreign_prefill_tokens = 0;
  double foreign_prefill_context = 0;  // sum over them of the tokens of context before each
  bool alone = true;                   // from its start on, before its first token, too
};

// Thread-safe. States of a call: Arrive -> (WaitForSlot) waiting -> prefilling -> (FirstToken)
// decoding -> Leave.
class CallTable {
 public:
  CallTable(const CallTableOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}

  // Takes a place for the call. Errors: RESOURCE_EXHAUSTED naming the limit and the calls before,
  // UNAVAILABLE when draining. `id` must be new.
  absl::Status Arrive(uint64_t id);
  void Leave(uint64_t id);

  // What runs in `lane` and would go before a call with this key, and how fast calls come beside
  // this one.
  Load LoadBefore(Lane lane, const QueueKey& key) const;

  // Waits until the call may run: there is a slot, no other call goes before it, and no running
  // call would miss its SLO because of it (slack.h). A call that must wait for that last reason
  // lets others pass, and is held no longer than kPatienceNs. Errors: CANCELLED,
  // DEADLINE_EXCEEDED.
  absl::Status WaitForSlot(Lane lane, const QueueKey& key, const OtherCall& work,
                           const CallDemand& demand, CallControl& control);

  // The same for a caller that must not block: Queue() once, then Started() until it says true. It
  // looks at the clock only, so that a simulated board admits calls by the same rules.
  void Queue(Lane lane, const QueueKey& key, const OtherCall& work, const CallDemand& demand);
  bool Started(Lane lane, uint64_t id);

  // Progress of a running call. FirstToken: its prefill is done.
  void FirstToken(uint64_t id);
  void Generated(uint64_t id, uint32_t tokens);
  // For a call past FirstToken: since then.
  DecodeSurroundings Surroundings(uint64_t id) const;

  // From now on Arrive answers UNAVAILABLE.
  void StopAdmitting();
  // Waits until every call has left, at most `timeout`.
  void AwaitEmpty(absl::Duration timeout) const;

  struct Counts {
    uint32_t running = 0;
    uint32_t waiting = 0;  // not yet with a worker
    uint32_t limit = 0;
  };
  Counts counts() const;

 private:
  enum class State { kArrived, kWaiting, kPrefilling, kDecoding };
  struct Entry {
    State state = State::kArrived;
    Lane lane = Lane::kTarget;
    QueueKey key;
    OtherCall work;
    CallDemand demand;
    int64_t granted_ns = 0;
    uint32_t generated = 0;
    int64_t told_ns = 0;  // when the last of them came
    double rows_integral_start = 0;
    double depth_integral_start = 0;
    uint32_t first_depth = 0;  // at its first token
    double prefilled_start = 0;
    double prefilled_context_start = 0;
    int64_t first_token_ns = 0;
    bool alone = true;  // no other call of its lane has run beside it
    bool running() const { return state == State::kPrefilling || state == State::kDecoding; }
  };
  struct LaneState {
    uint32_t decoding = 0;
    double depth = 0;           // tokens of the decoding calls' contexts
    double rows_integral = 0;   // sum over time of decoding calls, call-nanoseconds
    double depth_integral = 0;  // of `depth`, likewise
    int64_t integral_ns = 0;    // up to when
    double prefilled_tokens = 0;
    double prefilled_context = 0;  // sum over these of the tokens of context before each
  };

  Entry& Enqueue(Lane lane, const QueueKey& key, const OtherCall& work, const CallDemand& demand)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GrantSlots(Lane lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RunningBear(Lane lane, const Entry& newcomer, int64_t now_ns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static CallProgress ProgressOf(const Entry& entry);
  uint32_t Running(Lane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Empty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entries_.empty(); }
  // Brings the integrals to now and changes the number of decoding calls and their depth.
  void Account(Lane lane, int change, double depth_change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double IntegralNow(const LaneState& lane) const;
  double DepthIntegralNow(const LaneState& lane) const;
  // Arrivals of late, each worth less the longer it is ago.
  double ArrivalsNow(int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Poke() const { absl::MutexLock lock(&mutex_); }

  const CallTableOptions options_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::array<LaneState, kLanes> lanes_ ABSL_GUARDED_BY(mutex_);
  double arrivals_ ABSL_GUARDED_BY(mutex_) = 0;  // as of arrivals_ns_
  int64_t arrivals_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace withy::orchestrator

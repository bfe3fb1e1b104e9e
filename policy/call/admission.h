// Which calls are admitted, which wait, which run, and how much work each still has: a state
// machine that is fed events and the time. Bounded. No clock, no lock, no waiting. Neighbours:
// turn.h says who goes first, slack.h whether the running calls can bear another one,
// latency_model.h predicts from the Load given here. The orchestrator puts a lock and waiting
// callers around it, a simulated board drives it by events.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "policy/board/latency_model.h"
#include "policy/call/slack.h"
#include "policy/call/turn.h"

namespace withy::policy {

// Which worker answers.
enum class Lane { kTarget = 0, kDraft = 1 };
inline constexpr int kLanes = 2;

struct AdmissionOptions {
  uint32_t limit = 64;                       // calls of all lanes, in any state
  std::array<uint32_t, kLanes> slots{8, 8};  // calls that a lane runs at once
  double piece_ms = kPieceMs;                // longest piece of a prefill between decode steps
};

// What happened around one call while it decoded.
struct DecodeSurroundings {
  double mean_rows = 1;           // calls that decoded, itself included, averaged over time
  double other_depth_tokens = 0;  // of the contexts of the other ones, together, likewise
  double foreign_prefill_tokens = 0;
  double foreign_prefill_context = 0;  // sum over them of the tokens of context before each
  bool alone = true;                   // from its start on, before its first token, too
};

// Not thread-safe. `now_ns` is steady time and never decreases from call to call. States of a call:
// Arrive -> (Queue) waiting -> (StartReady) prefilling -> (FirstToken) decoding -> Leave.
class Admission {
 public:
  explicit Admission(const AdmissionOptions& options) : options_(options) {}

  // Takes a place for the call. Errors: RESOURCE_EXHAUSTED naming the limit and the calls before,
  // UNAVAILABLE when draining. `id` must be new.
  absl::Status Arrive(uint64_t id, int64_t now_ns);
  // Removes the call, in any state, and starts those that can start now. Unknown ids are ignored.
  void Leave(uint64_t id, int64_t now_ns);

  // The calls of `lane` that run, those that wait and would go before a call with this turn, and
  // the rate of arrivals beside it.
  Load LoadBefore(Lane lane, const Turn& turn, int64_t now_ns) const;

  // The call is decided and waits for its start.
  void Queue(Lane lane, const Turn& turn, const OtherCall& work, const CallDemand& demand);
  // Starts, in the order of their turns, the waiting calls of `lane` for which there is a slot and
  // whose work no running call misses its targets by. A call that is held back for the latter lets
  // others pass, and is held no longer than kPatienceNs. Slack also changes where nothing happens,
  // so this is asked again at least every kHoldPollNs while calls wait.
  void StartReady(Lane lane, int64_t now_ns);
  bool running(uint64_t id) const;

  // Progress of a running call. FirstToken: its prefill is done.
  void FirstToken(uint64_t id, int64_t now_ns);
  void Generated(uint64_t id, uint32_t tokens, int64_t now_ns);
  // For a call past FirstToken: since then.
  DecodeSurroundings Surroundings(uint64_t id, int64_t now_ns) const;

  // From now on Arrive answers UNAVAILABLE.
  void StopAdmitting() { draining_ = true; }
  bool empty() const { return entries_.empty(); }

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
    Turn turn;
    OtherCall work;
    CallDemand demand;
    int64_t granted_ns = 0;
    uint32_t generated = 0;
    int64_t told_ns = 0;  // when the last of them was told
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

    double RowsIntegral(int64_t now_ns) const;
    double DepthIntegral(int64_t now_ns) const;
  };

  bool RunningCallsAllow(Lane lane, const Entry& newcomer, int64_t now_ns) const;
  static CallProgress ProgressOf(const Entry& entry);
  uint32_t Running(Lane lane) const;
  // Brings the integrals to now and changes the number of decoding calls and their depth.
  void Account(Lane lane, int change, double depth_change, int64_t now_ns);
  // Past arrivals, each worth less the longer it is ago.
  double Arrivals(int64_t now_ns) const;

  const AdmissionOptions options_;
  std::map<uint64_t, Entry> entries_;
  std::array<LaneState, kLanes> lanes_;
  double arrivals_ = 0;  // as of arrivals_ns_
  int64_t arrivals_ns_ = 0;
  bool draining_ = false;
};

}  // namespace withy::policy

// The scheduler's policy: which waiting calls start, and what goes into the next step. Pure
// functions of their inputs; scheduler.h is the mechanism around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace withy::model_worker {

// A call that has waited so long goes before all that have not: nobody starves behind a stream of
// urgent calls.
inline constexpr int64_t kPatienceNs = 10'000'000'000;

// Rows of a piece while no answer streams: as many as the kernels' efficiency still grows with.
inline constexpr int32_t kQuietRows = 128;

// What a call's turn depends on.
struct CallOrder {
  int64_t deadline_ns = 0;  // steady time by which its first token is wanted; 0 = none
  int32_t priority = 0;     // higher first
  int64_t arrived_ns = 0;
  uint64_t sequence = 0;  // of arrival; breaks ties
};

// Strict weak order: calls beyond their patience by arrival, then by deadline (none = last),
// priority, arrival. See docs/method-decisions.md, While it runs.
bool ComesBefore(const CallOrder& a, const CallOrder& b, int64_t now_ns);

struct WaitingCall {
  CallOrder order;
  std::string_view context;  // empty = stateless
};

// Indices of the calls that start now, in order of their turn: at most `free_slots`, and one a
// context, none on a context in `busy_contexts` (a later call on another context may pass).
std::vector<size_t> ChooseStarts(std::span<const WaitingCall> waiting,
                                 std::span<const std::string_view> busy_contexts, size_t free_slots,
                                 int64_t now_ns);

// A call that runs, as far as the next step is concerned.
struct RunningCall {
  CallOrder order;
  bool decoding = false;     // its prompt is computed; it wants one row a step
  int32_t pending_rows = 0;  // tokens not yet computed
  int32_t ready_rows = 0;    // of these, how many have KV slots
  bool paused = false;       // its reader is behind: no rows now
};

struct PlannedRows {
  size_t call = 0;
  int32_t rows = 0;
};

// The next step: a row for every decoding call that is ready, and at most `piece_rows` rows of
// prefill. The call whose turn it is gets at least half of them, all when it has a deadline; the
// others share the rest, those with the least left first: so a short prompt is not stuck behind a
// long one, and a long one goes on. Always: no entry exceeds its call's ready rows, and every ready
// decoding call has its row.
std::vector<PlannedRows> PlanStep(std::span<const RunningCall> calls, int32_t piece_rows,
                                  int64_t now_ns);

// Whether a prompt's rows go in between while a step is under way, instead of waiting for its end.
// One with a deadline: when it comes before the prompts that the step computes. One without, when
// none of those has one either: its first rows, `begun` false, so that a short prompt is not stuck
// behind a long piece.
bool GoesBetween(const CallOrder& prompt, bool begun, std::span<const CallOrder> prompts_under_way,
                 int64_t now_ns);

// How many rows fit into one piece, learned from the steps that ran: shrinks at once when a step
// took too long, grows by a quarter at most when a full one left time. Counts rows of the full
// model; those of a lower level count as the share of it that they take. Not thread-safe.
class PieceSizer {
 public:
  static constexpr int32_t kMinRows = 8;  // below this a step costs nearly the same

  // `us_per_row` is the first guess.
  PieceSizer(double us_per_row, int32_t piece_ms, int32_t max_rows);

  // Rows of prefill beside `decode_rows` rows of decode; kMinRows..max_rows, whole multiples of 8.
  // `share`: of a full row that each takes, (0, 1].
  int32_t Rows(int32_t decode_rows, double share = 1) const;
  // A step of `full_rows` rows in all took `elapsed_us`.
  void Observe(double full_rows, double elapsed_us);

 private:
  const double piece_us_;
  const int32_t max_rows_;
  double rows_;
};

}  // namespace withy::model_worker

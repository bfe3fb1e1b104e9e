// Replays traces of context switches on a real context_store process with a stand-in for the
// worker, and measures single figures of it: switches to resident contexts, cold loads. Neighbours:
// contexts_trace.h makes the traces, contexts_figures.h compares, contexts_cost.h says what
// recomputing takes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/contexts/contestants.h"
#include "bench/contexts/contexts_figures.h"
#include "bench/contexts/contexts_trace.h"
#include "engine/kv/block.h"

namespace withy::bench {

// What a run is of, besides its setting.
struct ContextRun {
  engine::KvGeometry kv = {};
  RecomputeCost recompute = {};
  uint32_t max_tokens = 4096;  // window of a context; a full one gives up its end for a call
  uint32_t calls = 0;          // of the trace, from its start; 0 = all
  uint64_t seed = 1;
  double hours = 72;
  double mean_gap_s = 300;
  // The next call comes when the store has done what the last one left to do; false: at once, as at
  // the highest rate that is possible.
  bool await_idle = true;
};

struct ContextRunFigures {
  // Of calls on another context than the call before, whose context had tokens. A latency is the
  // time for which KV of tokens from before the call keeps the call's own tokens from being
  // computed: loading, making room, recomputing what is not there (the last as `recompute` says).
  // With a contestant that computes meanwhile it is the time by which the first piece of the call's
  // own tokens is computed later than it would be if all KV were there.
  LatencySummary switches = {};
  LatencySummary loads = {};     // of the same calls: until all KV of tokens from before is there
  double recomputed_tokens = 0;  // mean of a switch
  uint64_t arena_bytes = 0;
};

// Errors: RESOURCE_EXHAUSTED (one context of the contestant does not fit the arena), those of the
// processes.
absl::StatusOr<ContextRunFigures> RunContextTrace(const ContextSetting& setting,
                                                  const Contestant& contestant,
                                                  const ContextRun& run);

// Tokens of each context when a run begins: as many as half of the trace has given it.
std::vector<uint32_t> InitialTokens(const ContextTraceSpec& spec, uint32_t max_tokens);
// Bytes of the arena: the setting's share of all contexts at 8 bits, and room for one and a
// quarter at least.
uint64_t ArenaBytes(const ContextSetting& setting, const ContextRun& run);

struct ResidentSwitches {
  LatencySummary switches = {};
  LatencySummary empty_calls = {};  // of the store, each right after a switch
};
// Opening times of contexts of several lengths that are in the arena whole.
absl::StatusOr<ResidentSwitches> MeasureResidentSwitches(const ContextRun& run, uint32_t rounds);

// A context of which nothing is in the arena, on a disk that is as slow as to take `read_share` of
// the time of recomputing it. The worker uses processor time while the store reads, decrypts and
// copies.
struct RecomputeGain {
  double read_share = 0;
  double read_ms = 0;       // all of it is read
  double recompute_ms = 0;  // all of it is recomputed
  struct Planned {
    double ms = 0;
    double recomputed = 0;  // share of the chunks
  };
  Planned planned = {};
  // The same with a store that takes recomputing for ten times as slow or as fast as it is.
  Planned told_slow = {}, told_fast = {};

  double gain() const { return (read_ms < recompute_ms ? read_ms : recompute_ms) / planned.ms; }
  // The shortest time that is possible where both sides go on undisturbed.
  double best_ms() const { return 1 / (1 / read_ms + 1 / recompute_ms); }
};
absl::StatusOr<RecomputeGain> MeasureRecomputeGain(const ContextRun& of_model, uint32_t tokens,
                                                   double read_share);

// How much of the disk's speed a load of a whole context reaches after context_store was killed.
struct ColdLoad {
  double bytes_per_s = 0;       // of KV, encrypted on disk, from the opening on
  double disk_bytes_per_s = 0;  // of the same files with O_DIRECT, eight requests at a time
  double fraction = 0;          // median of the rounds
};
absl::StatusOr<ColdLoad> MeasureColdLoad(const ContextRun& run, uint32_t rounds);

}  // namespace withy::bench

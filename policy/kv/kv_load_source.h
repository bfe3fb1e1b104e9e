// The store's side of a load: its copy of the load's state (kv_load.h) and the plan of who reads
// and who computes which chunk (kv_load_progress.h). What it returns as an event has been applied
// to its own copy and is to be sent to the worker, in order. Pure. Neighbour: context_load.h moves
// the bytes.
//
//   NextGroup -> OnLayer*, OnFailed*, OnGroupEnded        of each group that is read
//   BeginYield -> the read of `cancelled` ends -> EndYield      when the worker asks
//   TellLayers                                             after each of these
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "policy/kv/kv_load.h"
#include "policy/kv/kv_load_plan.h"
#include "policy/kv/kv_load_progress.h"

namespace withy::policy {

struct LoadSourceOptions {
  // How many of the chunks to read, from the first on, may be yielded instead.
  size_t yieldable = 0;
  double tail_ms = 0;              // as LoadProgressOptions
  uint64_t least_group_bytes = 0;  // likewise
  std::vector<bool> cuts = {};     // likewise, by chunk to read; empty: before any
  // Layers are told only once all are there: the worker computes nothing behind chunks that are
  // being read (Cake).
  bool tells_whole_chunks = false;
};

// Of one load; not thread-safe. `now_ms`: any steady clock. "Read i" is the i-th of the chunks to
// read.
class KvLoadSource {
 public:
  // `reads`: the chunks that are KvLoad::Chunk::kReading in `load`, in order; at least one.
  KvLoadSource(KvLoad load, uint32_t layers, std::span<const MissingChunk> reads,
               const LoadCosts& costs, const LoadSourceOptions& options, double now_ms);

  const KvLoad& load() const { return load_; }
  void OnGivenUp(uint32_t chunk);
  void OnEnded() { OnGivenUp(0); }

  // Reads [begin, end).
  struct Group {
    uint32_t number = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  // The group to begin to read now. One that nobody needs any more may be ended at once.
  std::optional<Group> NextGroup(double now_ms);
  // The first `layers` of the group are in place. Returns false if the group is read no more.
  bool OnLayers(uint32_t number, uint32_t layers);
  // Read i, of a group being read, has failed. None: nobody is to be told.
  std::optional<KvLoadEvent> OnFailed(size_t read);
  // Reads that are not in place by then have failed. Returns the events of those.
  std::vector<KvLoadEvent> OnGroupEnded(uint32_t number, double now_ms);
  bool failed(size_t read) const { return failed_[read]; }
  // The reads of a group that is being read; none: it is not.
  std::optional<Group> Find(uint32_t number) const;

  // The layers that have come to be in place of all that is read since the last call; none: no
  // more, or none as long as chunks may be yielded.
  std::optional<KvLoadEvent> TellLayers();

  // Reads [begin, end) that are yielded to the worker. `cancelled`: the group that ends for that.
  struct Yield {
    size_t begin = 0;
    size_t end = 0;
    std::optional<uint32_t> cancelled = std::nullopt;
    size_t count() const { return end - begin; }
  };
  // The worker asks. EndYield follows; no group and no layer comes in between. `most` 0: a refusal.
  Yield BeginYield(uint32_t computed_before, size_t most, double now_ms);
  // There was room for the first `given` of them.
  KvLoadEvent EndYield(const Yield& yield, size_t given);

  // Nothing is being read, and nothing will be.
  bool done() const { return !load_.asked() && progress_.done(); }
  // Chunks that the worker has reported as computed, and how slow either side was.
  const KvLoadProgress& progress() const { return progress_; }

 private:
  struct Reading {
    Group group;
    uint32_t layers = 0;  // in place
  };

  KvLoad load_;
  const uint32_t layers_;
  const bool tells_whole_chunks_;
  std::vector<uint32_t> positions_;  // in the context, of the chunks that progress_ knows
  const size_t dealt_;               // of these, chunks that the worker had from the start
  KvLoadProgress progress_;
  std::vector<bool> failed_;             // by read
  std::map<uint32_t, Reading> reading_;  // groups, by number
  uint64_t arrived_blocks_ = 0;
};

}  // namespace withy::policy

// Writes KV of contexts that no call uses to disk. What is worth writing is decided in
// policy/kv/kv_disk.h; each step holds the lock only to begin and to end, and is dropped if a call
// has come meanwhile. Neighbour: idle_keeper.h runs it on its thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/lease/lease_book.h"
#include "context_store/records/records.h"

namespace withy::context_store {

// Write and SwapOut are for one thread at a time, so that nothing is written twice. What the
// constructor is given is borrowed.
class IdleWriter {
 public:
  // `forget`: these copies are lost.
  IdleWriter(LeaseBook& book, const Records& records, KvStorage& disk, StoreMetrics& metrics,
             const Clock& clock, std::function<void(const std::set<StoredCopy>& lost)> forget)
      : book_(book),
        records_(records),
        disk_(disk),
        metrics_(metrics),
        clock_(clock),
        forget_(std::move(forget)) {}

  // The chunks of an idle context that have no copy. Ends early if a call has come.
  void Write(const std::string& context_id);
  // What would leave the arena to make room for `bytes`, as far as the day's limit allows.
  void SwapOut(uint64_t bytes);
  // Copies that no chunk has any more leave the disk.
  void ReleaseCopies();

  // Whether the disk takes KV. It is not asked for some time after it has failed, and while Rest
  // says so.
  bool takes_writes() const { return clock_.SteadyNanos() >= resting_until_ns_; }
  void RestUntil(int64_t steady_ns) { resting_until_ns_ = steady_ns; }

 private:
  // Chunks of one context that are to be written, begun by IdleKv.
  struct Batch {
    std::string context_id;
    Geometry geometry;
    std::vector<ChunkWork> work = {};
  };
  // The chunks that the disk is spared are taken out of the batch. `for_room`: see
  // policy::WriteCandidate.
  std::vector<ChunkWork> TakeUnworthy(bool for_room, Batch* batch);
  // Writes what is worth it and ends all of the work.
  void WriteWorthy(bool for_room, Batch batch);
  // Writes the chunks and the context's index. Every chunk's work is finished.
  void WriteAll(const Batch& batch);
  // 0 for each chunk if the disk failed. Copies that had to give way are added to `lost`.
  std::vector<StoredCopy> StoreChunks(const Batch& batch, std::set<StoredCopy>* lost);
  void SaveIndex(const Batch& batch, std::span<const ContextChunk> chunks);

  LeaseBook& book_;
  const Records& records_;
  KvStorage& disk_;
  StoreMetrics& metrics_;
  const Clock& clock_;
  const std::function<void(const std::set<StoredCopy>& lost)> forget_;
  // Steady time until which the disk is not asked to take KV for room: it failed, or hangs.
  std::atomic<int64_t> resting_until_ns_{0};
};

}  // namespace withy::context_store

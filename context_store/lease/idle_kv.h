// What the store does with the KV of contexts that no call uses: evicts chunks for room, stores
// them in smaller formats, writes them to disk, takes over what an earlier process left. Pure
// state: the bytes are moved by idle/ and arena_keeper.cc. Neighbours: lease_table.h owns it
// and guards the contexts that calls use, policy/kv/kv_eviction.h orders evictions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "context_store/arena/arena_kv.h"
#include "policy/kv/kv_eviction.h"

namespace withy::context_store {

// Work of the store on a chunk of an idle context: its slot is pinned meanwhile. The chunk may be
// leased, dropped or replaced before the work is done.
struct ChunkWork {
  std::string context_id;
  uint32_t chunk = 0;
  KvSlot from;
  KvFormat to = KvFormat::kQ8;  // of what is written to disk
  std::string identity = {};
  uint64_t pin = 0;      // see SlotPool::Pin
  bool rewrite = false;  // an older copy of the chunk was written before
};

// Makes room in the arena by evicting chunks of idle contexts, in the order of the policy. Plans
// ahead, so it is of use only while its owner's lock is held.
class Evictions {
 public:
  // `except` keeps its chunks; may be null. `copies_only`: chunks that the disk does not give back
  // bit for bit stay.
  Evictions(ArenaKv& kv, policy::EvictionPolicy policy, const KvContext* except = nullptr,
            bool copies_only = false);

  // Of all chunks that may leave.
  uint64_t bytes() const;
  // Evicts the next chunk, with kContextLru the next context; false: there is none. `wanted_bytes`
  // says how many bytes are to leave in all, for the planning.
  bool EvictNext(uint64_t wanted_bytes, uint64_t* evicted);
  // The chunks that would leave next so that `bytes` become free.
  struct Candidate {
    std::string_view context_id;
    KvContext* context = nullptr;
    uint32_t chunk = 0;
  };
  const std::vector<Candidate>& Next(uint64_t bytes);
  // A slot for `owner`; evicts while no gap holds it. Last of all takes what was withheld.
  std::optional<SlotAt> Claim(uint64_t bytes, uint64_t owner, uint64_t* evicted);

 private:
  void Plan(uint64_t bytes);
  bool Evict(const Candidate& candidate, uint64_t* evicted);
  // How the chunk is used if it may leave; nullopt: it may not, or another context stands for it.
  std::optional<SharedUse> UseOf(const KvContext& context, const ContextChunk& chunk,
                                 const SharedUses& shared) const;

  ArenaKv* kv_;
  policy::EvictionPolicy policy_;
  const KvContext* except_;
  bool copies_only_;
  std::vector<Candidate> plan_;  // in this order
  size_t next_ = 0;
  uint64_t planned_bytes_ = 0;
};

// Not thread-safe: guarded by its owner's lock. `kv` is borrowed.
class IdleKv {
 public:
  IdleKv(ArenaKv& kv, policy::EvictionPolicy policy) : kv_(kv), policy_(policy) {}

  // All chunks of an idle context; empty if it has none or is not idle.
  std::vector<ContextChunk> Chunks(std::string_view context_id) const;

  // Claims `count` slots of 8 bits for `lease`, or none. Without `evict` only what is free counts.
  bool ClaimSlots(uint64_t count, LeaseId lease, bool evict, uint64_t* evicted,
                  std::vector<SlotAt>* slots);
  Evictions MakeEvictions(const KvContext* except = nullptr) { return {kv_, policy_, except}; }
  // Evicts all that may leave, and gives back all that is withheld: calls need the whole arena, and
  // slots of several sizes are in the way.
  void EvictAll(uint64_t* evicted);

  // Takes `bytes` more of the arena out of use, as far as gaps and chunks with copies on disk
  // permit. Returns whole pages whose memory can be given to the system.
  std::vector<SlotPool::Pages> Withhold(uint64_t bytes, uint64_t page_bytes, uint64_t* evicted);
  void GiveBack(uint64_t bytes) { kv_.pool.GiveBack(bytes); }

  // Bytes of the arena that are free, or become free when chunks leave that can be read back bit
  // for bit.
  uint64_t ExactRoom() const;
  // The contexts that no lease holds, used longest ago first.
  std::vector<std::string> ByUse() const;
  // For each of these idle contexts, of its chunks: which have to keep their format, because a call
  // uses a context that has them, too, because they are among the last `latest` chunks of such a
  // context, or because a later one of the given contexts has them, too, and stands for them.
  std::vector<std::vector<bool>> KeptFormats(const std::vector<std::string>& context_ids,
                                             size_t latest) const;
  // Chunks of 8 bits of idle contexts that may go on without the blocks of layers with a window
  // (arena/hidden_kv.h), of the context used longest ago first, until `bytes` of the arena would
  // become free.
  struct HiddenChunk {
    std::string context_id;
    uint32_t chunk = 0;
  };
  std::vector<HiddenChunk> Hidden(uint64_t bytes) const;
  // Begins to store a full chunk of an idle context in a format of fewer bits, or without the
  // blocks of layers with a window. nullopt: not idle, not resident, unfinished, has no more bits
  // or blocks than that, or may not lack these. FinishDemotion must follow.
  std::optional<ChunkWork> BeginDemotion(std::string_view context_id, uint32_t chunk, KvFormat to);
  // Gives the chunk a smaller slot in the place of its own, for all contexts that have it, if they
  // are idle and it is the same. Returns the new slot, to which the caller copies the blocks before
  // anything else happens; nullopt: nothing has changed.
  std::optional<KvSlot> FinishDemotion(const ChunkWork& work, KvFormat to);
  // Moves chunks of idle contexts together until the gaps hold `count` slots of 8 bits, or as many
  // as they can; `move` copies the bytes. At most `most_bytes` are moved. Returns their number.
  using MoveBytes = std::function<void(SlotAt from, SlotAt to, uint64_t bytes)>;
  uint64_t Compact(uint64_t count, uint64_t most_bytes, const MoveBytes& move);
  // As ArenaKv::Deduplicate, for an idle context.
  uint32_t Deduplicate(std::string_view context_id);
  // Begins to write a chunk of an idle context to disk; nullopt: not idle, not resident, or it has
  // a copy. FinishWrite must follow.
  std::optional<ChunkWork> BeginWrite(std::string_view context_id, uint32_t chunk);
  // Begins to write the chunks without a copy that would leave the arena if `bytes` of it had to be
  // free, in that order. FinishWrite must follow for each.
  std::vector<ChunkWork> BeginSwapOut(uint64_t bytes);
  // `stored`: the copy that was written, or 0. All contexts that have the chunk's slot and no copy
  // of it borrow that one. Returns whether the chunk has it now; if not, the caller gives the copy
  // up.
  bool FinishWrite(const ChunkWork& work, StoredCopy stored);
  // These copies are lost. A chunk that is on disk only is lost with its copy. Returns the contexts
  // that had one of them.
  std::set<std::string> ForgetCopies(const std::set<StoredCopy>& copies);
  // Copies on disk of all chunks.
  StoredCopies& copies() { return kv_.copies; }

  // The context to recompute at the full level: idle, has a chunk below it, most recently used. A
  // context whose rebuild found no room is skipped until its next use.
  struct Upgrade {
    std::string context_id;
    uint32_t level_percent = 0;  // of its lowest chunk
  };
  std::optional<Upgrade> NextUpgrade() const;

 private:
  std::optional<ChunkWork> BeginWork(std::string_view context_id, uint32_t chunk);
  ContextChunk* EndWork(const ChunkWork& work);
  // Whether a copy on disk makes writing the chunk in this format needless.
  bool IsWritten(const ContextChunk& chunk, KvFormat format) const {
    return kv_.compresses_ahead ? chunk.HasCopyIn(format) : chunk.HasExactCopy(format);
  }

  ArenaKv& kv_;
  const policy::EvictionPolicy policy_;
};

}  // namespace withy::context_store

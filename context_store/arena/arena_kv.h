// The KV of all contexts: where each chunk is, and the space of the arena. State that leases
// (lease_table.h) and the work on idle contexts (idle_kv.h) share. No bytes, disk, clock or
// threads. Neighbour: arena_directory.h describes the resident chunks for the next store process.
//
// Equal chunks of several contexts may have one slot. They are full and are only read: whoever
// would write claims another slot. A chunk's identity covers all tokens before it, so equal chunks
// have the same number, and contexts that differ once have no equal chunk behind. They may also
// have one copy on disk: the context that wrote it has the key, the others borrow it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "context_store/arena/arena_directory.h"
#include "context_store/arena/chunks.h"
#include "context_store/arena/slot_pool.h"
#include "context_store/arena/stored_copies.h"

namespace withy::context_store {

using LeaseId = uint64_t;  // never 0
// Owner of slots that no lease claimed.
inline constexpr LeaseId kStoresOwn = UINT64_MAX;

struct KvContext {
  std::string id;
  std::string app_id;  // empty: not known, shares nothing
  ContextChunks kv;
  LeaseId holder = 0;
  LeaseId next = 0;     // waits for room in the arena and will be the holder
  bool locked = false;  // is being deleted
  uint64_t last_used = 0;
  uint64_t no_room = UINT64_MAX;  // value of last_used when a rebuild found no room
  std::deque<LeaseId> waiting;

  bool idle() const { return holder == 0 && !locked; }
  bool taken() const { return holder != 0 || next != 0; }
  // Nothing is known of it, and nobody wants it.
  bool unused() const { return !taken() && !locked && waiting.empty() && kv.chunks.empty(); }
};

// By format. A slot or a copy that several contexts have counts once.
struct BytesByFormat {
  std::array<uint64_t, engine::kKvFormats> resident = {};
  std::array<uint64_t, engine::kKvFormats> stored = {};
};

// What a context has.
struct ContextKv {
  uint64_t resident_bytes = 0;
  uint64_t stored_bytes = 0;
  uint32_t tokens = 0;             // whose KV is in the arena or on disk
  uint32_t compressed_tokens = 0;  // of these, in fewer bits than 8
};

// Chunks of a context by where they are.
struct ChunkPlaces {
  uint32_t resident = 0;
  uint32_t stored_only = 0;
};

// How the contexts that have one slot use it.
struct SharedUse {
  bool idle = true;                   // all of them are idle, and none is to be spared
  bool copies = true;                 // each has a copy on disk of as many bits
  const KvContext* latest = nullptr;  // that was used last
};
using SharedUses = std::unordered_map<SlotAt, SharedUse>;

// Not thread-safe: guarded by the lock of the table that owns it.
struct ArenaKv {
  Geometry geometry;
  SlotPool pool;
  std::unordered_map<std::string, KvContext> contexts;
  uint64_t uses = 0;  // number of lease ends: the clock of last_used
  StoredCopies copies;
  ArenaDirectory* directory = nullptr;  // borrowed; null: nothing outlives this process
  uint64_t shares = 0;  // chunks that a context took over from another one, since the start
  // KvStrategy::compresses_ahead. If not, a chunk or a copy with more bits is preferred to an equal
  // one with fewer.
  bool compresses_ahead = false;
  // Identities that contexts of all apps may share; others are shared within an app only.
  std::unordered_set<std::string> public_chunks;

  // Creates it if there is none. `app_id`: of the context; empty: not known.
  KvContext& FindOrAdd(std::string_view context_id, std::string_view app_id = {});
  // nullptr: not idle, or unknown.
  KvContext* FindIdle(std::string_view context_id);
  const KvContext* FindIdle(std::string_view context_id) const;
  ChunkPlaces PlacesOf(std::string_view context_id) const;
  ContextKv KvOf(std::string_view context_id) const;
  std::vector<ContextChunk> ChunksOf(std::string_view context_id) const;
  BytesByFormat Bytes() const;  // of all contexts
  // Takes the copies and the shared slots that the context's chunks gave up.
  void Collect(KvContext* context);
  void EraseIfEmpty(const std::string& context_id);
  // Describes the context's resident chunks in the directory, as far as it does not yet.
  void Describe(const std::string& context_id);
  void Describe(const KvContext& context, uint32_t number);  // one chunk of it

  // For each of these identities, of chunks first, first + 1, ... of `context`: the chunk with the
  // most bits and blocks of another context with that identity whose slot `context` may have, too;
  // null: there is none. Valid until chunks of other contexts change.
  std::vector<ContextChunk*> FindEqual(const KvContext& context, uint32_t first,
                                       std::span<const std::string> identities);
  // Gives `chunk`, which has no slot, that of an equal chunk, and borrows its copy. Share counts
  // it, too.
  void Join(ContextChunk* chunk, ContextChunk* equal);
  void Share(ContextChunk* chunk, ContextChunk* equal);
  // Whether a chunk of the context may have the slot of this equal one instead of what it would get
  // in `format`.
  bool MayStandFor(const ContextChunk& equal, KvFormat format) const {
    return compresses_ahead || !HasFewerBits(equal.slot->format, format);
  }
  // Chunks of the context that have no slot get those of equal chunks. Returns their number.
  uint32_t ShareMissing(KvContext* context);
  // Full chunks with a slot of their own get those of equal chunks of the same format instead, or
  // of more bits; equal chunks of idle contexts with fewer bits get theirs. Returns their number.
  uint32_t Deduplicate(KvContext* context);
  // The contexts that have the slot, as their chunk `number`.
  std::vector<KvContext*> ContextsWith(SlotAt slot, uint32_t number);
  // The contexts that have the slot of this chunk of `context`; if it is not shared, `context`.
  std::vector<KvContext*> ContextsWith(KvContext* context, uint32_t number);
  // The use of all slots that are shared. `except` is to be spared; may be null.
  SharedUses UsesOfShared(const KvContext* except) const;
  // Takes the chunk out of the arena, which is only for a context that is idle. Without a copy on
  // disk it is gone, and what comes after it is of no use then, nor what lacks blocks and lies
  // within the windows of what is to be computed.
  void Evict(KvContext* context, uint32_t number);

 private:
  // Calls `visit(i, other, chunk)` for each such chunk, as FindEqual has them.
  template <class Visit>
  void ForEachEqual(const KvContext& context, uint32_t first,
                    std::span<const std::string> identities, Visit visit);
  uint32_t Restore(KvContext* context, std::span<const std::string> identities);
  bool MayShare(const KvContext& one, const KvContext& other, const std::string& identity) const;
};

}  // namespace withy::context_store

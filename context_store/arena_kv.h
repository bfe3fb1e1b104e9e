// The KV of all contexts: where each chunk is, and the space of the arena. State that leases
// (lease_table.h) and the work on idle contexts (idle_kv.h) share. No bytes, disk, clock or
// threads. Neighbour: arena_directory.h describes the resident chunks for the next store process.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "context_store/arena_directory.h"
#include "context_store/chunks.h"
#include "context_store/slot_pool.h"

namespace withy::context_store {

using LeaseId = uint64_t;  // never 0

struct KvContext {
  ContextChunks kv;
  LeaseId holder = 0;
  bool locked = false;  // is being deleted
  uint64_t last_used = 0;
  uint64_t no_room = UINT64_MAX;  // value of last_used when a rebuild found no room
  std::deque<LeaseId> waiting;

  bool idle() const { return holder == 0 && !locked; }
};

// By format.
struct BytesByFormat {
  std::array<uint64_t, engine::kKvFormats> resident = {};
  std::array<uint64_t, engine::kKvFormats> stored = {};
};

// Chunks of a context by where they are.
struct ChunkPlaces {
  uint32_t resident = 0;
  uint32_t stored_only = 0;
};

// Not thread-safe: guarded by the lock of the table that owns it.
struct ArenaKv {
  Geometry geometry;
  SlotPool pool;
  std::unordered_map<std::string, KvContext> contexts;
  uint64_t uses = 0;                    // number of lease ends: the clock of last_used
  std::vector<StoredCopy> given_up;     // copies on disk that no chunk has any more
  ArenaDirectory* directory = nullptr;  // borrowed; null: nothing outlives this process

  // nullptr: not idle, or unknown.
  KvContext* FindIdle(std::string_view context_id);
  const KvContext* FindIdle(std::string_view context_id) const;
  ChunkPlaces PlacesOf(std::string_view context_id) const;
  BytesByFormat Bytes() const;  // of all contexts
  // Takes the copies that the context's chunks gave up.
  void Collect(KvContext* context);
  void EraseIfEmpty(const std::string& context_id);
  // Describes the context's resident chunks in the directory, as far as it does not yet.
  void Describe(const std::string& context_id);
};

}  // namespace withy::context_store

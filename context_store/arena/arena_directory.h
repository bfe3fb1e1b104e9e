// Describes the chunks in the arena for the next store process: which chunk of which context is in
// which slot. It lies behind the arena's blocks, in the same memory, and outlives the process with
// it. Workers do not map it. Neighbours: arena_kv.h keeps it up to date, arena_keeper.cc checks
// what it says against the blocks before it is used.
//
// An entry is there only while its slot belongs to a context: it is removed before the slot is
// handed out or freed. So a process that is killed at any moment leaves no entry of a slot that a
// lease may write, except an unfinished chunk that a lease extends in place, whose checksum then
// fails. Stores reach memory in program order as seen by the next process: it runs after this one
// has died. An entry that is half written fails its own checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "context_store/arena/chunks.h"

namespace withy::context_store {

// A chunk of a context in the arena.
struct KeptChunk {
  std::string context_id;
  uint32_t chunk = 0;
  KvSlot slot;
  ChunkIdentity identity;
};

// Not thread-safe. The memory is borrowed.
class ArenaDirectory {
 public:
  // Bytes for an arena of `arena_bytes`. What is not used takes no memory.
  static uint64_t BytesFor(uint64_t arena_bytes);

  // Reads what an earlier process left in `memory` (zeros: nothing). `arena_bytes` and its layout
  // must be as they were, else it is empty.
  ArenaDirectory(std::span<std::byte> memory, uint64_t arena_bytes);

  // Of the chunks described; nullopt: none yet.
  const std::optional<Geometry>& geometry() const { return geometry_; }
  // Sound entries, in no order. Several contexts may have one slot; other slots may overlap.
  std::vector<KeptChunk> Chunks() const;

  // Forgets everything; the chunks to come have this geometry.
  void Reset(const Geometry& geometry);
  // Describes a chunk. Replaces the context's entry of its slot. A chunk for which there is no
  // entry left, or whose context id is too long, is not described: the next process does not find
  // it.
  void Put(const KeptChunk& chunk);
  // Removes all entries of the slot, or that of one context.
  void Remove(SlotAt slot);
  void Remove(SlotAt slot, std::string_view context_id);

  size_t size() const { return entry_of_.size(); }

 private:
  struct Entry;
  struct Header;
  using Entries = std::unordered_multimap<SlotAt, uint32_t>;
  Entry* At(uint32_t entry) const;
  Entries::iterator Find(SlotAt slot, std::string_view context_id);
  Entries::iterator Erase(Entries::iterator entry);

  const std::span<std::byte> memory_;
  const uint64_t arena_bytes_;
  uint32_t capacity_ = 0;
  std::optional<Geometry> geometry_;
  Entries entry_of_;
  std::vector<uint32_t> free_;  // entries below used_
  uint32_t used_ = 0;           // entries from here on were never written
};

}  // namespace withy::context_store

// KV chunks: their geometry, identity and slots, and the moves of slots between a context, which
// keeps chunks, and a lease, which claims chunks to write them. Pure functions over a SlotPool.
// Neighbour: lease_table.h decides which lease may do what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "context_store/arena/slot_pool.h"
#include "engine/kv/block.h"
#include "engine/kv/slot.h"
#include "policy/kv/kv_load.h"

namespace withy::context_store {

using engine::kChunkTokens;
using engine::KvFormat;
using engine::KvSlot;

inline constexpr size_t kIdentityBytes = 32;

// KV dimensions of the model that a worker serves. Chunks of another geometry are useless to it.
struct Geometry {
  std::string model_id;  // 32 bytes
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_bytes = 0;  // as the worker lays out a block of 8 bits
  // See policy/kv/kv_window.h. 0: no layer has a window.
  uint32_t window_reach = 0;
  engine::KvLayerSet windowed = {};

  engine::KvGeometry kv() const {
    return {static_cast<int>(layers), static_cast<int>(kv_heads), static_cast<int>(head_dim),
            windowed};
  }
  uint64_t ChunkBytes(KvFormat format) const { return kv().ChunkBytes(format); }
  bool operator==(const Geometry&) const = default;
};

// Errors: INVALID_ARGUMENT (an invalid field, a layout that this build does not have, or not even
// one chunk fits `arena_bytes`).
absl::Status CheckGeometry(const Geometry& geometry, uint64_t arena_bytes);

struct ChunkIdentity {
  std::string identity;  // 32 bytes
  uint32_t tokens = 0;   // 1..16; only the last chunk may have fewer than 16
  uint32_t model_level_percent = 0;
  // Mean attention probability that a token of the chunk gets from each row after it (LLMS eq. 1);
  // the number of rows that the mean is of.
  float density = 0;
  uint32_t density_rows = 0;
};

// A chunk's place in the arena.
struct ChunkSlot {
  uint32_t chunk = 0;
  KvSlot slot;
};

// A chunk that a lease's context has. kReading: into its slot. kToCompute: by the lease, into this
// slot, which it has claimed. Never kLost.
struct ResidentChunk {
  using State = policy::KvLoad::Chunk;
  ChunkSlot where;
  ChunkIdentity identity;
  State state = State::kResident;
};
using ResidentChunks = std::vector<ResidentChunk>;

// Names a chunk's copy on disk; 0 = none. Only kv_storage.h knows what it means.
using StoredCopy = uint64_t;

// A chunk of a context. It is in the arena, on disk, in both, or, if it is not the last one, in
// neither: then the next lease recomputes it.
struct ContextChunk {
  ChunkIdentity identity;
  std::optional<KvSlot> slot = std::nullopt;
  StoredCopy stored = 0;
  // Of the copy; not always that of the slot. Without a copy, of one that may be borrowed.
  KvFormat stored_format = KvFormat::kQ8;
  bool was_stored = false;  // a copy was given up for a newer content
  bool loading = false;     // its slot is being filled from the copy, for the context's lease
  bool shared = false;  // other contexts have its slot, or had it: SlotPool::contexts says how many
  bool indexed = false;  // StoredCopies::Indexed, where ArenaKv::ChunksOf returns it

  bool nowhere() const { return !slot.has_value() && stored == 0; }
  bool HasCopyIn(KvFormat format) const { return stored != 0 && stored_format == format; }
  // Whether a copy has as many bits as `format`, or more: nothing is lost if a chunk in `format`
  // leaves the arena. What a copy lacks is hidden (hidden_kv.h).
  bool HasExactCopy(KvFormat format) const;
  bool HasExactCopy() const { return slot.has_value() && HasExactCopy(slot->format); }
};

// Whether a chunk in `format` lacks the blocks of layers with a window.
constexpr bool LacksBlocks(KvFormat format) { return format == KvFormat::kQ8Global; }

// Whether `format` keeps less of the numbers than `other`.
constexpr bool HasFewerBits(KvFormat format, KvFormat other) {
  const auto bits = [](KvFormat of) { return engine::KBits(of) + engine::VBits(of); };
  return bits(format) < bits(other);
}

// Likewise, or has as many bits and lacks blocks that `other` has.
constexpr bool IsLess(KvFormat format, KvFormat other) {
  return HasFewerBits(format, other) ||
         (LacksBlocks(format) && !LacksBlocks(other) && !HasFewerBits(other, format));
}

inline bool ContextChunk::HasExactCopy(KvFormat format) const {
  return stored != 0 && !HasFewerBits(stored_format, format);
}

// What happens to a context's chunks while slots move.
struct ContextChunks {
  std::vector<ContextChunk> chunks;       // by number
  std::vector<StoredCopy> given_up = {};  // copies on disk that no chunk has any more
  std::vector<SlotAt> left = {};          // slots that it had, and that other contexts still have
};

// A lease's slots, by chunk; all of 8 bits.
using ClaimedChunks = std::map<uint32_t, SlotAt>;

// Number of leading chunks that have slots: the context's, or the lease's.
uint32_t HeldPrefix(const ClaimedChunks& claimed, const ContextChunks& context);
// The first chunk that has no slot, and behind which none has.
uint32_t NextChunk(const ClaimedChunks& claimed, const ContextChunks& context);

// Checks the chunks to commit against what the context and the lease have. Errors: INVALID_ARGUMENT
// (an invalid identity, a gap, or a full chunk that changed without a claim).
absl::Status CheckCommit(const ClaimedChunks& claimed, const ContextChunks& context,
                         const std::vector<ChunkIdentity>& chunks);

// The chunk has no copy on disk any more.
void GiveUpCopy(ContextChunk* chunk, ContextChunks* context);
// The chunk has no slot any more, which is free then unless other contexts have it.
void LeaveSlot(ContextChunk* chunk, ContextChunks* context, SlotPool* pool);
// Drops all but the first `keep_chunks` chunks.
void Truncate(size_t keep_chunks, ContextChunks* context, SlotPool* pool);
// Whether a lease of the context may write into the chunk's slot: it is of 8 bits, nothing is being
// read into it, and no other context has it.
bool Writable(const ContextChunk& chunk, const SlotPool& pool);
// Moves the context's chunks from `first` on to the lease `owner`, which will write them. A chunk
// whose slot is not writable is dropped instead.
void MoveToLease(uint32_t first, uint64_t owner, ContextChunks* context, ClaimedChunks* claimed,
                 SlotPool* pool);
// Makes `commit` the context's chunks: replaces or adds those that are claimed, drops those beyond
// the commit. A chunk that is what it was keeps its copy on disk. Other claims stay with the lease.
void KeepCommitted(std::vector<ChunkIdentity> commit, ContextChunks* context,
                   ClaimedChunks* claimed, SlotPool* pool);
// The context's lease is over: chunks that were being read for it are on disk only, as before.
// Last chunks that are nowhere are dropped.
void EndLoading(ContextChunks* context, SlotPool* pool);
// Frees all of a lease's slots.
void FreeClaimed(ClaimedChunks* claimed, SlotPool* pool);

}  // namespace withy::context_store

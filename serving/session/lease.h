// The context store as the core sees it: a call has a lease over one context's record and KV
// blocks. Neighbours: lease_client.h speaks it over gRPC; tests script it.
//
// Order of one lease: Open, OnOpened, Begin when it was opened ahead of its call, Share -> OnShared
// at most once, any number of Fault, Claim -> OnClaimed, Yield -> OnLoad, then Commit ->
// OnCommitted, or Abort.
// OnLoad also comes while KV is read from disk. OnBroken may come instead of any event, and is then
// the last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/memory.h"
#include "engine/kv/slot.h"
#include "engine/sampling/sampler.h"
#include "engine/session/segment.h"
#include "policy/kv/kv_load.h"
#include "serving/call/call.h"
#include "serving/session/chunk_identity.h"

namespace withy::serving {

// The KV arena as this process maps it. Any thread; a slot is written by the holder of its lease
// only.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual uint64_t epoch() const = 0;
  // All of it, as the engine reads and writes blocks.
  virtual engine::KvMemory memory() const = 0;

  std::byte* At(engine::KvBlockName block) const { return memory().At(block); }
  // Whether a chunk of this geometry in this slot lies inside.
  bool Holds(const engine::KvGeometry& geometry, engine::KvSlot slot) const {
    return slot.units != engine::KvBlockName::kNone && slot.format != engine::KvFormat::kEmpty &&
           slot.offset() + geometry.ChunkBytes(slot.format) <= memory().bytes;
  }
};

// The place of one chunk.
struct ChunkSlot {
  int32_t chunk = 0;
  engine::KvSlot slot;
};

// A chunk that a context has when a lease opens.
struct ResidentChunk {
  // kReading: into its slot. kToCompute: into this slot of 8 bits. Never kLost.
  using State = policy::KvLoad::Chunk;
  ChunkSlot where;
  ChunkName name;
  State state = State::kResident;
};

// Chunks that a call would compute, for the store to look for them among other contexts.
struct WantedChunks {
  int32_t first_chunk = 0;
  // Names of the full chunks from there on, in the ways (levels) in which they may be used.
  std::vector<std::vector<ChunkName>> ways;
};

// What the store tells of a load.
struct LoadEvent {
  policy::KvLoadEvent what;
  std::vector<ChunkSlot> slots = {};  // of 8 bits, of the chunks that are yielded
};

struct LeaseOpen {
  std::string app_id = {};      // empty: of a stateless call that has not come yet
  std::string context_id = {};  // empty = stateless: blocks without a record
  uint64_t call_id = 0;
  bool rebuild = false;  // claims lie beside what the context has, until the commit
  // Stateless calls: how many chunks, from chunk 0 on, are claimed with the opening.
  int32_t claim_chunks = 0;
  // The request that the call answers, if it has an id: it replaces what an earlier try left
  // unfinished.
  std::string request_id = {};
  std::string request_digest = {};
  int32_t level_percent = 0;  // that the call computes at; 0: not known
  int32_t prompt_tokens = 0;  // that the call adds; 0: not known
  int32_t need_tokens = 0;    // that the context may come to have; 0: not known
};

struct OpenedLease {
  std::vector<engine::Segment> segments;
  std::vector<ResidentChunk> resident;  // from chunk 0 on, without gaps
  std::vector<ChunkSlot> claimed = {};  // by LeaseOpen::claim_chunks; may be none
  // Segments of the record that are not in `segments`, because the call replaces them; the resident
  // KV may have been computed with them.
  int32_t left_out = 0;
  // Shared: a step may still use a mapping while the worker attaches to a restarted store.
  std::shared_ptr<const Arena> arena;
};

// What a call leaves in the store.
struct LeaseCommit {
  std::vector<engine::Segment> appended;
  std::vector<ChunkName> chunks;  // of the whole context; those not named are freed
  int32_t context_tokens = 0;     // of the record, within the window
  int32_t appended_tokens = 0;    // of `appended`
  int32_t dropped_segments = 0;   // of the record, for which the window has no room
  std::string request_id;         // empty = nothing to remember for a retry
  std::string request_digest;
  std::string decision;  // wire bytes, stored with the result as they came
  engine::SamplingParams sampling;
  CallOutcome outcome;
  // `appended` is no result of request_id; a retry replaces it.
  bool broken_off = false;
};

// Methods do not block and may be called from any thread. Destroying a lease that was not committed
// aborts it.
class Lease {
 public:
  virtual ~Lease() = default;
  // Names the call that takes a lease which was opened without an app. `need_tokens`: as
  // LeaseOpen's.
  virtual void Begin(std::string app_id, uint64_t call_id, int32_t need_tokens) = 0;
  // Before the first claim; for a call on a context.
  virtual void Share(WantedChunks wanted) = 0;
  virtual void Claim(int32_t first_chunk, int32_t chunks) = 0;
  virtual void Fault(int32_t chunk, std::string reason) = 0;
  // Asks for at most `most` chunks that are still being read, to compute them instead. Those below
  // `computed_before` that were to be computed are. Once at a time.
  virtual void Yield(int32_t computed_before, int32_t most) = 0;
  virtual void Commit(LeaseCommit commit) = 0;
  virtual void Abort() = 0;  // later calls, from any thread, are ignored
};

// Called from any thread, one at a time, never under a lock of the caller's; must not block.
class LeaseEvents {
 public:
  virtual ~LeaseEvents() = default;
  virtual void OnOpened(std::shared_ptr<Lease> lease, OpenedLease opened) = 0;
  // Of the chunks that are being read; also answers Yield.
  virtual void OnLoad(LoadEvent event) = 0;
  // Of the chunks that were wanted, those that the context has now; all resident.
  virtual void OnShared(std::vector<ResidentChunk> chunks) = 0;
  // The slots of one claim, perhaps only when other leases have ended; or none, and why it was
  // refused.
  virtual void OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) = 0;
  virtual void OnCommitted() = 0;
  virtual void OnBroken(absl::Status status) = 0;
};

// Opens leases. Thread-safe.
class LeaseSource {
 public:
  virtual ~LeaseSource() = default;
  // The lease is shared by the thread that steps the call and the one that prepares and commits it.
  // `events` lives until the lease's last event. Errors: UNAVAILABLE while no store is attached.
  virtual absl::StatusOr<std::shared_ptr<Lease>> Open(LeaseOpen open,
                                                      std::shared_ptr<LeaseEvents> events) = 0;
};

}  // namespace withy::serving

// The KV of one call's context: which of its chunks it reuses, what it claims, the names that its
// chunks are committed with. Neighbours: context_blocks.h has the chunks, kv_holes.h says which
// tokens have to be computed; session.h knows the tokens and what is computed; lease.h brings
// chunks; chunk_identity.h names them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"
#include "policy/kv/kv_load.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/context_blocks.h"
#include "serving/session/kv_holes.h"
#include "serving/session/lease.h"

namespace withy::serving {

// Chunks to ask the store for.
struct ClaimRange {
  int32_t first = 0;
  int32_t count = 0;
};

// Which resident chunks a call may reuse.
struct ReuseRules {
  bool rebuild = false;         // computes all that is below level_percent again
  int32_t level_percent = 100;  // of the call
  int32_t history_tokens = 0;   // of the record before the call
  // The window left out older messages of the record, or the call sees the record in another way
  // than the one before it, or the template writes it anew (`window_moved`), or the call replaces
  // some of it: chunks that do not match are no fault then.
  bool window_moved = false;
  bool record_replaced = false;
};

// Not thread-safe. `model` and `namer` outlive it.
class ContextKv {
 public:
  ContextKv(const engine::ModelInfo& model, const ChunkNamer& namer,
            std::shared_ptr<const Arena> arena);

  // Takes over the first of `resident` that `ids` need, as many as leave the windows whole of what
  // follows them (policy/kv/kv_window.h). Called once, before anything else.
  void AdoptResident(std::span<const ResidentChunk> resident, std::span<const int32_t> ids,
                     const ReuseRules& rules);
  // Names of the full chunks behind those that are taken over, but for the last of `ids`, as the
  // call would compute them at its level, or as other contexts may have them at the full one. No
  // ways if there are none, or if the last chunk that is taken over is not full.
  WantedChunks Wanted(std::span<const int32_t> ids, int32_t level_percent) const;
  // Takes over the first of these chunks of other contexts that `ids` need. Before the first claim.
  void AdoptShared(std::span<const ResidentChunk> chunks, std::span<const int32_t> ids);
  // Takes over chunks that were claimed with the opening of the lease. Errors: INTERNAL when the
  // context has chunks already; as AddChunks.
  absl::Status AdoptClaimed(std::span<const ChunkSlot> claimed);
  // Tokens of the chunks that are taken over; behind them all is new.
  int32_t reused_tokens() const { return reused_tokens_; }
  // Of these, tokens whose KV has fewer bits than the working format or was computed from such KV:
  // what follows is not what it would be if nothing had been kept.
  int32_t compressed_tokens() const;
  // Likewise, tokens whose KV was computed at another level than this one.
  int32_t other_level_tokens(int32_t level_percent) const;

  // How far those of the reused chunks have come that were not all there at first.
  const policy::KvLoad& load() const { return load_; }
  policy::KvLoad& load() { return load_; }
  // Takes an event of the load in, and the slots of chunks that are yielded. Not a yield while a
  // step of this context is under way. Errors: INTERNAL (a slot that is impossible, a chunk that is
  // not being read).
  absl::Status Apply(const LoadEvent& event, int64_t now_ns);
  // KvLoad::arrived, as the engine takes it (ContextView::layers_ready).
  const std::atomic<int32_t>& layers_ready() const { return layers_ready_; }

  // Which tokens have to be computed.
  KvHoles holes() const { return {load_, reused_tokens_}; }
  // Gives up the chunks from `chunk` on, and those before it without which the windows of its first
  // token are not whole: they have to be claimed, and their tokens computed. A claim that is under
  // way is of no use then.
  void Truncate(int32_t chunk);
  // The lowest level of the reused chunks, as an index; the full one without any.
  int32_t lowest_level() const { return lowest_level_; }
  // The first resident chunk whose content is not that of its identity.
  std::optional<int32_t> faulty_chunk() const { return faulty_chunk_; }

  const ContextBlocks& blocks() const { return blocks_; }
  ContextBlocks& blocks() { return blocks_; }

  // Begins a claim of what is missing for `tokens` tokens; none while a claim is under way or when
  // nothing is missing. AddChunks or EndClaim ends it.
  std::optional<ClaimRange> BeginClaim(int32_t tokens);
  // Takes the claimed chunks, unless Truncate has made the claim useless. Errors: INTERNAL when the
  // store gave other chunks than were asked for, or an impossible slot.
  absl::Status AddChunks(std::span<const ChunkSlot> chunks);
  void EndClaim() {
    claim_.reset();
    claim_is_stale_ = false;
  }

  // Names the chunks of `ids`, whose levels in per cent are `levels`, and writes the headers of
  // those that are not reused as they were. The missing tokens of [0, computed) have been computed.
  std::vector<ChunkName> NameAndStamp(std::span<const int32_t> ids, std::vector<int32_t> levels,
                                      int32_t computed);

 private:
  void Reuse(const ResidentChunk& chunk, const ChunkName& name);
  bool IsToCompute(size_t chunk) const {
    return load_.state(static_cast<uint32_t>(chunk)) == policy::KvLoad::Chunk::kToCompute;
  }
  // Chunks from this one on are computed over compressed KV.
  size_t CompressedFrom() const;
  void AddDensities(int32_t computed, std::vector<ChunkName>* names) const;

  const engine::ModelInfo& model_;
  const ChunkNamer& namer_;
  ContextBlocks blocks_;
  int32_t reused_tokens_ = 0;
  policy::KvLoad load_;  // of the resident chunks that were taken over
  std::atomic<int32_t> layers_ready_{0};
  std::vector<ChunkName> reused_;
  int32_t lowest_level_;
  std::optional<int32_t> faulty_chunk_;
  std::optional<ClaimRange> claim_;
  bool claim_is_stale_ = false;  // Truncate came after BeginClaim
};

}  // namespace withy::serving

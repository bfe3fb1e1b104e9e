// The KV of one call's context: which of its chunks it reuses, which of them have to be computed
// again, which slots it has for tokens, the names and headers that its chunks are committed with.
// Neighbours: session.h knows the tokens and what is computed; lease.h brings chunks;
// chunk_identity.h names them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"
#include "policy/kv/kv_load.h"
#include "serving/session/chunk_identity.h"
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

  // Takes over the first of `resident` that `ids` need. Called once, before anything else.
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
  // The first token of a chunk that is being read from disk; reused_tokens() if none is.
  int32_t first_reading() const;
  // KvLoad::arrived, as the engine takes it (ContextView::layers_ready).
  const std::atomic<int32_t>& layers_ready() const { return layers_ready_; }

  // A token is missing if it is new or of a chunk that has to be recomputed; KV of all others is
  // only read. Positions are from token 0 on.
  // The first missing token at or behind `at`.
  int32_t SkipPresent(int32_t at) const;
  // How many of the tokens [from, to) are missing.
  int32_t CountMissing(int32_t from, int32_t to) const;
  // The first missing token behind the first `count` missing ones at or behind `from`.
  int32_t AfterMissing(int32_t from, int32_t count) const;
  // Gives up the chunks from `chunk` on: they have to be claimed, and their tokens computed. A
  // claim that is under way is of no use then.
  void Truncate(int32_t chunk);
  // The lowest level of the reused chunks, as an index; the full one without any.
  int32_t lowest_level() const { return lowest_level_; }
  // The first resident chunk whose content is not that of its identity.
  std::optional<int32_t> faulty_chunk() const { return faulty_chunk_; }

  int32_t slots() const { return slots_; }  // tokens that there is room for
  int32_t chunks() const { return static_cast<int32_t>(density_.size()); }
  // Valid until the next chunks are added.
  engine::ContextView View() {
    return {.memory = arena_->memory(),
            .blocks = blocks_,
            .committed_tokens = SkipPresent(0),
            .density = density_,
            .chunk_versions = versions_};
  }
  // Adds the attention that a row outside View().density gave to chunks, [chunks at most].
  void AddDensity(std::span<const float> row) {
    for (size_t i = 0; i < std::min(row.size(), density_.size()); ++i) density_[i] += row[i];
  }
  // Copies K and V of the token in one slot to another one, in all layers.
  void CopySlot(int32_t from_slot, int32_t to_slot);

  // Begins a claim of what is missing for `tokens` tokens; none while a claim is under way or when
  // nothing is missing. AddChunks or EndClaim ends it.
  std::optional<ClaimRange> BeginClaim(int32_t tokens);
  // Errors: INTERNAL when the store gave other chunks than were asked for, or an impossible slot.
  absl::Status AddChunks(std::span<const ChunkSlot> chunks);
  void EndClaim() { claim_.reset(); }
  // Whether a claim is under way whose chunks are not wanted any more; EndClaim ends it.
  bool claim_is_stale() const { return claim_.has_value() && claim_is_stale_; }

  // Names the chunks of `ids`, whose levels in per cent are `levels`, and writes the headers of
  // those that are not reused as they were. The missing tokens of [0, computed) have been computed.
  std::vector<ChunkName> NameAndStamp(std::span<const int32_t> ids, std::vector<int32_t> levels,
                                      int32_t computed);

 private:
  std::byte* BlockOf(int32_t chunk, int32_t layer) const;
  void Reuse(const ResidentChunk& chunk, const ChunkName& name);
  bool IsToCompute(size_t chunk) const {
    return load_.state(static_cast<uint32_t>(chunk)) == policy::KvLoad::Chunk::kToCompute;
  }
  bool IsCompressed(size_t chunk) const;
  // Chunks from this one on are computed over compressed KV.
  size_t CompressedFrom() const;
  void PushChunk(engine::KvSlot slot);
  void StampHeaders(const ChunkName& name, size_t chunk) const;
  void AddDensities(int32_t computed, std::vector<ChunkName>* names) const;

  const engine::ModelInfo& model_;
  const engine::KvGeometry geometry_;
  const ChunkNamer& namer_;
  const std::shared_ptr<const Arena> arena_;  // shared: a step may use it after a detach
  std::vector<engine::KvBlockName> blocks_;   // [chunk * layers + layer]
  std::vector<float> density_;                // by chunk, as ContextView::density
  std::vector<uint64_t> versions_;            // by chunk, as ContextView::chunk_versions
  int32_t slots_ = 0;
  int32_t reused_tokens_ = 0;
  policy::KvLoad load_;  // of the resident chunks that were taken over
  std::atomic<int32_t> layers_ready_{0};
  std::vector<ChunkName> reused_;
  int32_t lowest_level_;
  std::optional<int32_t> faulty_chunk_;
  std::optional<ClaimRange> claim_;
  bool claim_is_stale_ = false;  // Truncate came after BeginClaim
};

// Chunks that `tokens` tokens take.
int32_t ChunksFor(int32_t tokens);

}  // namespace withy::serving

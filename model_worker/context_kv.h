// The KV of one call's context: which resident chunks it reuses, which slots it has for tokens, the
// names and headers that its chunks are committed with. Neighbours: session.h knows the tokens and
// what is computed; lease.h brings chunks; chunk_identity.h names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"
#include "model_worker/chunk_identity.h"
#include "model_worker/lease.h"

namespace withy::model_worker {

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
  // The window left out older messages of the record, or the call replaces some of it: chunks that
  // do not match are no fault then.
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
  // Takes over chunks that were claimed with the opening of the lease. Errors: INTERNAL when the
  // context has chunks already; as AddChunks.
  absl::Status AdoptClaimed(std::span<const ChunkSlot> claimed);
  // Tokens whose KV was there: their slots are only read.
  int32_t reused_tokens() const { return reused_tokens_; }
  // The lowest level of the reused chunks, as an index; the full one without any.
  int32_t lowest_level() const { return lowest_level_; }
  // The first resident chunk whose content is not that of its identity.
  std::optional<int32_t> faulty_chunk() const { return faulty_chunk_; }

  int32_t slots() const { return slots_; }  // tokens that there is room for
  // Valid until the next chunks are added.
  engine::ContextView View() {
    return {.memory = arena_->memory(),
            .blocks = blocks_,
            .committed_tokens = reused_tokens_,
            .density = density_};
  }
  // Copies K and V of the token in one slot to another one, in all layers.
  void CopySlot(int32_t from_slot, int32_t to_slot);

  // Begins a claim of what is missing for `tokens` tokens; none while a claim is under way or when
  // nothing is missing. AddChunks or EndClaim ends it.
  std::optional<ClaimRange> BeginClaim(int32_t tokens);
  // Errors: INTERNAL when the store gave other chunks than were asked for, or an impossible slot.
  absl::Status AddChunks(std::span<const ChunkSlot> chunks);
  void EndClaim() { claim_.reset(); }

  // Names the chunks of `ids`, whose levels in per cent are `levels`, and writes the headers of
  // those that are not reused as they were. Rows [reused_tokens(), computed) have been computed.
  std::vector<ChunkName> NameAndStamp(std::span<const int32_t> ids, std::vector<int32_t> levels,
                                      int32_t computed);

 private:
  std::byte* BlockOf(int32_t chunk, int32_t layer) const;
  bool HeadersMatch(const ResidentChunk& chunk) const;
  void PushChunk(engine::KvSlot slot);
  void StampHeaders(std::span<const ChunkName> names, size_t first) const;
  void AddDensities(int32_t computed, std::vector<ChunkName>* names) const;

  const engine::ModelInfo& model_;
  const engine::KvGeometry geometry_;
  const ChunkNamer& namer_;
  const std::shared_ptr<const Arena> arena_;  // shared: a step may use it after a detach
  std::vector<engine::KvBlockName> blocks_;   // [chunk * layers + layer]
  std::vector<float> density_;                // by chunk, as ContextView::density
  int32_t slots_ = 0;
  int32_t reused_tokens_ = 0;
  std::vector<ChunkName> reused_;
  int32_t lowest_level_;
  std::optional<int32_t> faulty_chunk_;
  std::optional<ClaimRange> claim_;
};

// Chunks that `tokens` tokens take.
int32_t ChunksFor(int32_t tokens);

}  // namespace withy::model_worker

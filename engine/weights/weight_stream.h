// Reads streamed weights ahead of the passes that use them. A pass asks for one stage after the
// other; while it computes one, the next ones are being read into the other slots of the ring,
// across the end of the pass into the next one. Neighbours: stage_ring.h decides what is read when,
// weight_memory.h has the ring, model/planned_pass.h waits, cpu/executor.h releases.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/weights/experts/expert_stream.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/weight_plan.h"
#include "engine/weights/weight_stream_options.h"

namespace withy::engine {

// How weights are kept, and what reading them has taken so far. All zero: nothing is streamed.
struct WeightStreamStats {
  uint64_t budget_bytes = 0;
  uint64_t resident_bytes = 0;  // head, vectors and LoRA included
  uint64_t buffer_bytes = 0;    // the ring, rows of embeddings, and experts
  uint64_t locked_bytes = 0;
  uint64_t pass_bytes = 0;         // read for a pass at the full level
  uint64_t lowest_pass_bytes = 0;  // likewise at the lowest one
  bool direct = false;             // past the page cache
  bool uring = false;

  uint64_t read_bytes = 0;
  uint64_t waits = 0;  // times that a pass stood still; what ran in its place is not looked at
  int64_t wait_ns = 0;
  uint64_t failures = 0;     // waits that ended with an error
  uint64_t bad_reads = 0;    // reads that did not give what the file held when it was opened
  ExpertStats experts = {};  // counted above, too

  bool streams() const { return buffer_bytes > 0; }
};

// Demand, Await and FetchRows are for one thread at a time; the rest is thread-safe.
class WeightStream {
 public:
  // Loads what is resident, points the tensors of `file` at it, and begins to read. The file stays
  // open. Errors: as LoadWeights and WeightMemory::Create.
  static absl::StatusOr<std::unique_ptr<WeightStream>> Start(WeightPlan plan,
                                                             const WeightStreamOptions& options,
                                                             PackedFile* file);
  // Waits for reads under way, WeightStreamOptions::stall_ns at most: what a hung disk still owns
  // is left to it.
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Whether rows of a level need bytes of a stage that are not resident.
  bool Needs(int32_t stage, int32_t level) const;
  // A pass begins whose rows need this level at most: what is read ahead from now on is what the
  // level needs. No effect if the level needs nothing, so that a small level that is computed
  // between two passes leaves their reads alone.
  void ReadAheadAt(int32_t level);
  // Whether a stage has arrived. Stays true until the stage is released or another stage is
  // awaited that is not behind it.
  bool Ready(int32_t stage, int32_t level) const;
  // Asks for a stage that Await is called for next. The result becomes true once that has something
  // to return, and is valid until the next Demand. The time until then counts as a wait.
  const std::atomic<bool>& Demand(int32_t stage, int32_t level);
  // Waits until a stage has arrived; false: `*stop` became true first. Stages before it are
  // released. Errors: UNAVAILABLE (the disk fails, or nothing arrives for stall_ns), DATA_LOSS (the
  // file is shorter than it was or has changed); both name file, layer and remedy. The next Await
  // tries again.
  absl::StatusOr<bool> Await(int32_t stage, int32_t level, const std::atomic<bool>* stop);
  // The stage was used at this level: its buffer, and those of stages before it, may take later
  // ones. Any thread.
  void Release(int32_t stage, int32_t level);

  // Whether rows of a table are read for each pass.
  bool StreamsEmbedding(EmbeddingTable table = EmbeddingTable::kTokens) const;
  // Reads the rows of `tokens`, at most StreamedEmbedding::rows, of a streamed table. Waits and
  // fails as Await does.
  absl::StatusOr<bool> FetchRows(std::span<const int32_t> tokens, const std::atomic<bool>* stop,
                                 EmbeddingTable table = EmbeddingTable::kTokens);
  // Row i of the last FetchRows of the table, [columns of the table].
  const float* FetchedRow(int32_t i, EmbeddingTable table = EmbeddingTable::kTokens) const;

  // Null if no experts are streamed.
  ExpertStream* experts() const { return experts_.get(); }

  WeightStreamStats stats() const;

 private:
  class Core;
  // Shared with the reading thread, which a hung disk may hold beyond the life of the stream.
  explicit WeightStream(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  const std::shared_ptr<Core> core_;
  std::unique_ptr<ExpertStream> experts_;
};

}  // namespace withy::engine

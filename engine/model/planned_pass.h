// Computes a batch piece by piece: plans the rows, writes the program, and lets an executor run it.
// Use it through Model::Begin. Neighbours: packed_model.h reuses passes for their buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/executor.h"
#include "engine/model/facts.h"
#include "engine/model/model.h"
#include "engine/model/program.h"
#include "engine/model/row_plan.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

// Computes one batch at a time. Not thread-safe. `facts` and `info` must outlive it.
class PlannedPass {
 public:
  // `max_piece_rows`: maximum number of rows per piece. `tap`: as for Emit. `stream`: null if all
  // weights stay in memory.
  PlannedPass(const ModelFacts& facts, const ModelInfo& info, std::unique_ptr<ProgramRun> run,
              int32_t max_piece_rows, bool tap, WeightStream* stream = nullptr);

  // Takes a batch. The memory behind `batch` and `logits` must stay valid until the pass finishes
  // or is abandoned. Errors: as Model::Begin.
  absl::Status Start(const Batch& batch, float* logits);
  // As Pass::Run.
  bool Run(const std::atomic<bool>* stop, double until);
  // As Pass::WaitsForKv.
  bool WaitsForKv() const { return run_->ops_done() >= OpsReady(); }
  // As Pass::status.
  const absl::Status& status() const { return status_; }
  // As Pass::Done. Pieces count by their rows, a layer by what the rows' levels compute of it, and
  // the operations of a layer equally.
  double Done() const;
  // Drops the remaining work.
  void Abandon();

 private:
  // Plans and starts the next piece; false if there is none.
  bool NextPiece();
  // Share of the batch's work done after `layers` layers of the current piece.
  double ShareAfter(double layers) const;
  // Index of the piece's operation before which Run(`until`) pauses.
  int32_t OpsUntil(double until) const;
  // Index of the piece's first operation whose KV blocks are not in place.
  int32_t OpsReady() const;
  // Waits for the streamed weights of the operation that comes next. Returns the index of the first
  // operation behind it whose weights have not arrived; the next one's own index if `*stop` became
  // true or the weights cannot be read, which sets status_.
  int32_t AwaitWeights(const std::atomic<bool>* stop);
  // Whether the last Run of the program failed, which sets status_.
  bool FailedRun();
  // Whether the streamed embeddings' rows of the piece are there; false: as AwaitWeights.
  bool FetchEmbeddings(const std::atomic<bool>* stop);

  const ModelFacts& facts_;
  const ModelInfo& info_;
  const std::unique_ptr<ProgramRun> run_;
  const int32_t max_piece_rows_;
  const bool tap_;
  WeightStream* const stream_;

  absl::Status status_;          // of the current batch
  Batch batch_;                  // the caller's
  float* logits_ = nullptr;      // the caller's
  RowPlan plan_;                 // of the current piece
  Program program_;              // of the current piece
  int32_t begin_row_ = 0;        // of the current piece
  int32_t end_row_ = 0;          // of the current piece
  std::vector<int32_t> tokens_;  // of the current piece, as planned
  int32_t logits_rows_ = 0;      // rows with logits in the pieces planned so far
};

}  // namespace withy::engine

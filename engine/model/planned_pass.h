// A batch on its way through a model, piece by piece: rows are planned, the program is written, an
// executor runs it. Use it through Model::Begin. Neighbours: packed_model.h keeps passes for their
// buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/model/executor.h"
#include "engine/model/facts.h"
#include "engine/model/model.h"
#include "engine/model/program.h"
#include "engine/model/row_plan.h"

namespace withy::engine {

// Batch after batch, one at a time. Not thread-safe. What is passed in outlives it.
class PlannedPass {
 public:
  // `max_piece_rows`: rows of a piece at most. `tap`: operations that show the residual stream.
  PlannedPass(const ModelFacts& facts, const ModelInfo& info, std::unique_ptr<ProgramRun> run,
              int32_t max_piece_rows, bool tap);

  // Takes a batch, which stays until the pass is over. Errors: as Model::Begin.
  absl::Status Start(const Batch& batch, float* logits);
  // As Pass::Run.
  bool Run(const std::atomic<bool>* stop, double until);
  // As Pass::Done: every row counts alike, a layer by what the rows' levels compute of it, and
  // every operation of a layer alike.
  double Done() const;
  // Gives up what is left.
  void Abandon();

 private:
  // Plans and starts the next piece; false when there is none.
  bool NextPiece();
  // Share of the batch that is done with so many layers of the present piece.
  double DoneWith(double layers) const;
  // The first operation of the piece that is not to be begun.
  int32_t OpsUntil(double until) const;

  const ModelFacts& facts_;
  const ModelInfo& info_;
  const std::unique_ptr<ProgramRun> run_;
  const int32_t max_piece_rows_;
  const bool tap_;

  Batch batch_;              // the caller's
  float* logits_ = nullptr;  // likewise
  RowPlan plan_;             // of the present piece
  Program program_;
  int32_t begin_row_ = 0;  // of the present piece
  int32_t end_row_ = 0;
  int32_t logits_rows_ = 0;  // of the pieces before the next one
};

}  // namespace withy::engine

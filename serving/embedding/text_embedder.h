// Vectors of texts: the mean over a text's tokens of the last layer's output after the final norm,
// at the full level, scaled to length 1. Computed pass by pass, so that a worker does it between
// calls. Neighbours: idle_embedder.h drives it; engine/model computes. Knows no tokenizer.
//
//   WITHY_ASSIGN_OR_RETURN(auto embedder, TextEmbedder::Create(model, {ids, more_ids}));
//   while (!embedder->finished()) WITHY_RETURN_IF_ERROR(embedder->Run(nullptr).status());
//   Use(embedder->TakeVectors());
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

namespace withy::serving {

struct TextVector {
  std::vector<float> values = {};  // [d_model], of length 1
  int32_t tokens = 0;              // of the text
};

// Not thread-safe; its model computes for nobody else while Run runs, and outlives it. A text's
// vector does not depend on the texts beside it.
class TextEmbedder {
 public:
  // `texts`: token ids. Errors: INVALID_ARGUMENT (no text, a text without tokens, an id outside the
  // vocabulary), OUT_OF_RANGE (a text is longer than `window` tokens). Messages name the text as
  // "inputs[I]", the value and the limit.
  static absl::StatusOr<std::unique_ptr<TextEmbedder>> Create(
      engine::Model& model, std::vector<std::vector<int32_t>> texts, int32_t window);

  // Goes on by a share of a pass. False: `*stop` became true first; the next Run goes on from
  // there, and other passes may run in between. Errors: as Pass::status; INTERNAL (a vector that
  // is no numbers).
  absl::StatusOr<bool> Run(const std::atomic<bool>* stop);
  bool finished() const { return next_text_ == texts_.size() && rows_.empty(); }
  // Rows of passes that are over.
  uint64_t computed_tokens() const { return computed_tokens_; }
  // The vectors that were finished since the last call, in the order of the texts.
  std::vector<TextVector> TakeVectors();

 private:
  TextEmbedder(engine::Model& model, std::vector<std::vector<int32_t>> texts);
  // Chooses the rows of the next pass, and begins it.
  absl::Status Begin();
  void AddRows(size_t text, size_t first, size_t end, int32_t first_chunk);
  // Adds what the pass computed to the texts' sums.
  absl::Status Finish();

  engine::Model& model_;
  const std::vector<std::vector<int32_t>> texts_;
  const size_t most_rows_;  // of a pass
  engine::ScratchKv kv_;    // of the texts of a pass, one behind the other from chunk 0 on
  size_t next_text_ = 0;    // whose tokens have not all been given to a pass
  size_t next_token_ = 0;   // of it; above 0 it is alone in its passes but the last
  uint64_t computed_tokens_ = 0;
  std::vector<double> sum_;  // of the text that is under way
  std::vector<TextVector> vectors_;

  // Of the pass; its texts are contexts.
  std::vector<engine::Row> rows_;
  std::vector<size_t> texts_of_rows_;
  std::vector<engine::ContextView> views_;
  std::vector<float> hidden_;  // [rows, d_model]
  std::unique_ptr<engine::Pass> pass_;
};

}  // namespace withy::serving

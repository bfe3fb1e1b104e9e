// An EAGLE-3 draft head: one layer that goes on from hidden states of a target model and expects
// the tokens that follow. It needs no other vocabulary and computes no prompt of its own: what it
// reads of a prompt comes of the target's passes (Row::features). Neighbours: head_file.h reads
// and checks the file, head_states.h has the states, head_pass.h computes; serving/speculation/
// grows trees with it. Computes on the CPU.
//
//   WITHY_ASSIGN_OR_RETURN(auto head, DraftHead::Open("head.gguf", *model));
//   HeadStates states = head->NewStates();   // of one context
//   // A pass of the target with Batch::feature_layers = head->shape().feature_layers:
//   states.Append(0, features_of_token_0);
//   ScratchKv kv(head->info(), 64);
//   ContextView view = kv.View();
//   view.head = &states;
//   Row row{.token = token_1, .position = 1, .slot = 1, .want_logits = true};
//   auto pass = head->Begin({.rows = {&row, 1}, .contexts = {&view, 1}}, logits.data());
//   (*pass)->Run();                          // logits of the token at position 2
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"
#include "engine/head/head_file.h"
#include "engine/head/head_pass.h"
#include "engine/head/head_states.h"
#include "engine/head/head_weights.h"
#include "engine/model/model.h"

namespace withy::engine {

// Owns its weights, all of them in memory, and compute threads. One thread at a time may use it,
// and one pass at a time may be under way.
class DraftHead final : public RowModel {
 public:
  // `target` is asked here alone, but for weights that the head borrows from its packed file.
  // Errors: those of GgufFile::Open, ReadHead, CheckHeadFits and LoadHeadWeights;
  // INVALID_ARGUMENT (the target gives no features: a GPU computes it).
  static absl::StatusOr<std::unique_ptr<DraftHead>> Open(const std::string& path,
                                                         const Model& target);

  // vocab_size is the target's; kv that of the head's one layer.
  const ModelInfo& info() const override { return info_; }
  const HeadShape& shape() const { return shape_; }
  HeadStates NewStates() const { return {shape_.feature_width(), shape_.layer.d_model}; }

  // Computes rows whose contexts have ContextView::head. A row at position p is of the token at p
  // and goes on from the features of the token before it, or, where that one has none, from the
  // hidden state of the row before it, which an earlier pass must have left. Rows see the tokens
  // from HeadStates::first() on. One that wants logits gets those of the token behind it, [rows
  // with want_logits, vocab_size] with -infinity for tokens that the head does not draft, and
  // leaves its hidden state where HeadStates::TakesDraft; of an unfinished pass it is undefined, as
  // K and V are. The others' K and V are computed alone.
  // Errors: INVALID_ARGUMENT (as Model::Begin; no states), FAILED_PRECONDITION (nothing to go on
  // from; another pass is under way).
  absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) override;

 private:
  class BorrowedPass;

  DraftHead(HeadShape shape, const Model& target);

  const HeadShape shape_;
  const Kernels& kernels_;
  ThreadPool pool_;
  HeadWeights weights_;
  ModelInfo info_;
  std::unique_ptr<HeadPass> pass_;
  bool under_way_ = false;
};

}  // namespace withy::engine

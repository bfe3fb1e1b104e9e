// The model that the TLM decides for, asked one thing: how well does it say the right answer to a
// record, at one of its levels. Neighbours: score_labels.h and decision_table.h make labels of it.
// Runs on the engine, as the service does. Does not generate: one prefill of prompt and answer
// tells.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "offline/corpus/record.h"
#include "offline/train/chat_encoder.h"

namespace withy::tlm {

struct Judgement {
  double loss = 0;            // of the answer's tokens and its end, summed, in nats
  bool right = false;         // every one is the most likely: greedy decoding says the answer
  int32_t prompt_tokens = 0;  // of the whole prompt, markup included
};

// Not thread-safe.
class Target {
 public:
  // Errors: as engine::Model::Open and MakeTokenizer; INVALID_ARGUMENT for a model whose tokenizer
  // lacks ChatML's turn marks, which the corpus is written with.
  static absl::StatusOr<std::unique_ptr<Target>> Open(const std::string& path,
                                                      const engine::ModelOptions& options);

  const engine::ModelInfo& info() const { return model_->info(); }

  // `level`: index into info().levels. Errors: as engine::Model::Forward; INVALID_ARGUMENT for a
  // record longer than the model's context.
  absl::StatusOr<Judgement> Judge(const corpus::Record& record, int32_t level);

  // Variants of one record, one after another at the full level, where each begins as the first
  // one does: what they share is computed once.
  absl::StatusOr<Judgement> JudgeFirst(const corpus::Record& record);
  absl::StatusOr<Judgement> JudgeVariant(const corpus::Record& record);

 private:
  Target(std::unique_ptr<engine::Model> model, train::ChatEncoder encoder)
      : model_(std::move(model)), encoder_(std::move(encoder)) {}
  // Computes tokens from `first` on; slots below it hold the same tokens' K and V already.
  absl::StatusOr<Judgement> Run(const train::Sample& sample, int32_t level, int32_t first,
                                const engine::ContextView& view);

  std::unique_ptr<engine::Model> model_;
  train::ChatEncoder encoder_;
  std::vector<int32_t> base_tokens_;
  std::unique_ptr<engine::ScratchKv> base_kv_;
};

}  // namespace withy::tlm

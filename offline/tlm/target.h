// Evaluates the TLM's target model: how well it produces the correct answer to a record at one of
// its levels. Neighbours: score_labels.h and decision_table.h make labels from that. Runs on the
// engine, as the service does. Does not generate: one prefill of prompt and answer suffices.
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
  double loss = 0;            // summed over the answer's tokens and its end, in nats
  bool right = false;         // each token is the most likely: greedy decoding gives the answer
  int32_t prompt_tokens = 0;  // of the whole prompt, markup included
};

// Not thread-safe.
class Target {
 public:
  // Errors: as engine::Model::Open and MakeTokenizer; INVALID_ARGUMENT if the tokenizer lacks
  // ChatML's turn marks, which the corpus uses.
  static absl::StatusOr<std::unique_ptr<Target>> Open(const std::string& path,
                                                      const engine::ModelOptions& options);

  const engine::ModelInfo& info() const { return model_->info(); }

  // `level`: index into info().levels. Errors: as engine::Model::Forward; INVALID_ARGUMENT for a
  // record longer than the model's context.
  absl::StatusOr<Judgement> Judge(const corpus::Record& record, int32_t level);

  // Evaluates variants of one record at the full level, one after the other; the prefix that a
  // variant shares with the first one is computed once.
  absl::StatusOr<Judgement> JudgeFirst(const corpus::Record& record);
  absl::StatusOr<Judgement> JudgeVariant(const corpus::Record& record);

 private:
  Target(std::unique_ptr<engine::Model> model, train::ChatEncoder encoder)
      : model_(std::move(model)), encoder_(std::move(encoder)) {}
  // Computes the tokens from `first` on; lower slots already hold the K and V of the same tokens.
  absl::StatusOr<Judgement> Run(const train::Sample& sample, int32_t level, int32_t first,
                                const engine::ContextView& view);

  std::unique_ptr<engine::Model> model_;
  train::ChatEncoder encoder_;
  std::vector<int32_t> base_tokens_;
  std::unique_ptr<engine::ScratchKv> base_kv_;
};

}  // namespace withy::tlm

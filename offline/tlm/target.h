// Evaluates the TLM's target model: how well it produces the answer of a record at one of its
// levels. Neighbours: score_labels.h and decision_table.h make labels from that. Runs on the
// engine, as the service does. Judging generates nothing: one prefill of prompt and answer
// suffices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/session/served_model.h"
#include "offline/corpus/record.h"
#include "offline/train/chat_encoder.h"

namespace withy::tlm {

// Most tokens of a model's own answer that pairs of levels are judged by.
inline constexpr int32_t kOwnAnswerTokens = 48;
// Share of an own answer's tokens that must be the likeliest for a pair to be right. Two greedy
// answers of a general model seldom stay the same to the end; an answer of fewer than ten tokens
// has to.
inline constexpr double kOwnAnswerShare = 0.9;

struct Judgement {
  double loss = 0;            // summed over the answer's tokens and its end, in nats
  bool right = false;         // as the target was opened
  int32_t prompt_tokens = 0;  // of the whole prompt, markup included
};

// Not thread-safe.
class Target {
 public:
  // For records of the corpus: an answer is right when each token, and its end, is the most likely,
  // so that greedy decoding gives it. Errors: as engine::Model::Open and MakeTokenizer;
  // INVALID_ARGUMENT if the tokenizer lacks ChatML's turn marks, which the corpus uses.
  static absl::StatusOr<std::unique_ptr<Target>> Open(const std::string& path,
                                                      const engine::ModelOptions& options);
  // For prompts of any kind and any model, by its own chat template: an answer, which is the
  // model's own, is right when kOwnAnswerShare of its tokens are the most likely. Errors: as
  // engine::OpenServedModel.
  static absl::StatusOr<std::unique_ptr<Target>> OpenForOwnAnswers(
      const std::string& path, const engine::ModelOptions& options);

  const engine::ModelInfo& info() const { return model_->info(); }

  // The full model's greedy answer to the record's messages, of at most kOwnAnswerTokens; of a
  // target that was opened for own answers. Errors: of the chat template; OUT_OF_RANGE (a prompt
  // longer than the window); as engine::Model::Forward.
  absl::StatusOr<std::string> Answer(const corpus::Record& record);

  // `level`: index into info().levels. Errors: as engine::Model::Forward; INVALID_ARGUMENT for a
  // record longer than the model's context.
  absl::StatusOr<Judgement> Judge(const corpus::Record& record, int32_t level);

  // Evaluates variants of one record at the full level, one after the other; the prefix that a
  // variant shares with the first one is computed once.
  absl::StatusOr<Judgement> JudgeFirst(const corpus::Record& record);
  absl::StatusOr<Judgement> JudgeVariant(const corpus::Record& record);

 private:
  // Exactly one of the two encodes records.
  Target(std::unique_ptr<engine::Model> model, train::ChatEncoder encoder)
      : own_model_(std::move(model)), model_(own_model_.get()), encoder_(std::move(encoder)) {}
  explicit Target(std::unique_ptr<engine::ServedModel> served)
      : served_(std::move(served)), model_(served_->bundle.model.get()) {}

  absl::StatusOr<train::Sample> Encode(const corpus::Record& record) const;
  // Computes the tokens from `first` on; lower slots already hold the K and V of the same tokens.
  absl::StatusOr<Judgement> Run(const train::Sample& sample, int32_t level, int32_t first,
                                const engine::ContextView& view);

  std::unique_ptr<engine::Model> own_model_;
  std::unique_ptr<engine::ServedModel> served_;
  engine::Model* const model_;  // of the two the one that there is
  std::optional<train::ChatEncoder> encoder_;
  std::vector<int32_t> base_tokens_;
  std::unique_ptr<engine::ScratchKv> base_kv_;
};

}  // namespace withy::tlm

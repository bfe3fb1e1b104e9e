// Scores held-out prompts of the corpus in this process, with one pass per prompt. The model is fed
// the right answer. Greedy decoding would give that answer exactly if, at every position, the
// likeliest token is the answer's. Neighbours: pocket.cc asks through the service instead;
// offline/corpus writes the prompts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/bundle.h"
#include "engine/session/segment.h"
#include "offline/corpus/generator.h"

namespace withy::bench {

struct Question {
  corpus::Task task = corpus::Task::kApi;
  int difficulty = 1;
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;  // the right answer, with the token that ends the turn
  std::vector<engine::Segment> messages = {};  // that the prompt's ids are of
};

// Token ids of the record's conversation, up to where the assistant answers.
absl::StatusOr<std::vector<int32_t>> PromptIds(const engine::ModelBundle& bundle,
                                               const corpus::Record& record);
absl::StatusOr<Question> Encode(const engine::ModelBundle& bundle, const corpus::Record& record);

// Records [0, count) of `spec`.
absl::StatusOr<std::vector<Question>> EncodeAll(const engine::ModelBundle& bundle,
                                                const corpus::Spec& spec, int count);

// Computes the logits [answer.size(), vocab_size] that predict each token of `answer` after
// `prompt`, at `level` (an index into ModelInfo::levels; negative: the full model). Errors: as
// Model::Forward.
absl::Status AnswerLogits(engine::Model& model, std::span<const int32_t> prompt,
                          std::span<const int32_t> answer, int32_t level,
                          std::vector<float>* logits);

// The id of the largest logit; the lowest on ties.
int32_t Best(std::span<const float> logits);

// Number of tokens of `answer` that are the likeliest at their position.
int32_t AgreedTokens(std::span<const float> logits, std::span<const int32_t> answer);

}  // namespace withy::bench

// Held-out prompts of the corpus in this process: token ids, and what a model makes of them when it
// is fed the right answer. Greedy decoding gives an answer exactly when, fed that answer, the
// likeliest token is the answer's at every position, so one pass a prompt is enough to score it.
// Neighbours: pocket.cc asks through the service instead; offline/corpus writes the prompts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/bundle.h"
#include "offline/corpus/generator.h"

namespace withy::bench {

struct Question {
  corpus::Task task = corpus::Task::kApi;
  int difficulty = 1;
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;  // the right one, with the token that ends the turn
};

// Ids of the record's conversation, up to where the assistant answers.
absl::StatusOr<std::vector<int32_t>> PromptIds(const engine::ModelBundle& bundle,
                                               const corpus::Record& record);
absl::StatusOr<Question> Encode(const engine::ModelBundle& bundle, const corpus::Record& record);

// Records [0, count) of `spec`.
absl::StatusOr<std::vector<Question>> EncodeAll(const engine::ModelBundle& bundle,
                                                const corpus::Spec& spec, int count);

// Logits [answer.size()][vocab_size] of the positions that `answer` is at, after `prompt`, at
// `level` (an index of ModelInfo::levels; negative: the full model). Errors: as Model::Forward.
absl::Status AnswerLogits(engine::Model& model, std::span<const int32_t> prompt,
                          std::span<const int32_t> answer, int32_t level,
                          std::vector<float>* logits);

// The lowest id of the largest logit.
int32_t Best(std::span<const float> logits);

// How many of `answer`'s tokens are the likeliest where they stand.
int32_t AgreedTokens(std::span<const float> logits, std::span<const int32_t> answer);

}  // namespace withy::bench

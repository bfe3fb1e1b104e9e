// Encodes records to token ids exactly as the service does and marks the tokens that the assistant
// has to produce. Neighbours: corpus/ writes the records, batches.h makes batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/template.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/corpus/record.h"
#include "offline/vocab/bpe_trainer.h"

namespace withy::train {

struct Sample {
  std::vector<int32_t> tokens;
  // answer[i]: tokens[i] belongs to an assistant's message or ends its turn.
  std::vector<bool> answer;
  size_t last_answer = 0;  // index of the first token of the record's own answer
  corpus::Task task = corpus::Task::kApi;
  int difficulty = 1;
  int shots = 0;
};

// Immutable; thread-safe.
class ChatEncoder {
 public:
  // `tokenizer` must have ChatML's turn marks.
  explicit ChatEncoder(std::unique_ptr<engine::Tokenizer> tokenizer);

  Sample Encode(const corpus::Record& record) const;
  int32_t vocab_size() const { return tokenizer_->vocab_size(); }

 private:
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  engine::ChatTemplate chat_;
};

// The vocabulary of the pocket models, learned from the first records of the training corpus.
vocab::BpeVocabulary LearnPocketVocabulary();

// An encoder with that vocabulary, which it stores as `directory`/vocabulary.gguf. Errors: of the
// file system, naming the file.
absl::StatusOr<ChatEncoder> MakePocketEncoder(const vocab::BpeVocabulary& vocabulary,
                                              const std::string& directory);

}  // namespace withy::train

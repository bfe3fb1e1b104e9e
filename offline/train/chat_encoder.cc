#include "offline/train/chat_encoder.h"

#include <filesystem>
#include <system_error>

#include "base/status.h"
#include "offline/corpus/generator.h"
#include "offline/vocab/vocabulary.h"

namespace withy::train {
namespace {

constexpr int32_t kVocabSize = 1536;
constexpr uint64_t kVocabRecords = 20000;
constexpr int64_t kMinPairs = 2;

// The assistant's contents in the joined text, each including the mark that ends its turn.
std::vector<engine::ByteSpan> AnswerSpans(const engine::RenderedChat& chat,
                                          const std::vector<engine::ChatMessage>& messages) {
  std::vector<engine::ByteSpan> spans;
  uint32_t at = 0;
  for (const engine::ChatPiece& piece : chat.pieces) {
    const uint32_t end = at + static_cast<uint32_t>(piece.text.size());
    if (piece.message >= 0 && messages[static_cast<size_t>(piece.message)].role == "assistant") {
      spans.push_back({at, end + static_cast<uint32_t>(vocab::kTurnEnd.size())});
    }
    at = end;
  }
  return spans;
}

std::vector<engine::ChatMessage> WithAnswer(const corpus::Record& record) {
  std::vector<engine::ChatMessage> messages;
  for (const corpus::Message& message : record.messages) {
    messages.push_back({message.role, message.content, {}});
  }
  messages.push_back({"assistant", record.answer, {}});
  return messages;
}

}  // namespace

vocab::BpeVocabulary LearnPocketVocabulary() {
  const corpus::Generator generator(corpus::TrainSpec());
  vocab::BpeTrainer trainer;
  for (uint64_t i = 0; i < kVocabRecords; ++i) {
    const corpus::Record record = generator.At(i);
    for (const corpus::Message& message : record.messages) {
      trainer.Add(message.role + "\n" + message.content);
    }
    trainer.Add(record.answer);
  }
  return trainer.Learn({std::string(vocab::kEndOfText), std::string(vocab::kTurnStart),
                        std::string(vocab::kTurnEnd)},
                       kVocabSize, kMinPairs);
}

absl::StatusOr<ChatEncoder> MakePocketEncoder(const vocab::BpeVocabulary& vocabulary,
                                              const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(directory, ": ", error.message()));
  }
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Tokenizer> tokenizer,
                         vocab::MakeTokenizer(vocabulary, directory + "/vocabulary.gguf"));
  return ChatEncoder(std::move(tokenizer));
}

ChatEncoder::ChatEncoder(std::unique_ptr<engine::Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), chat_(engine::ChatTemplate::FromName("chatml").value()) {}

Sample ChatEncoder::Encode(const corpus::Record& record) const {
  const std::vector<engine::ChatMessage> messages = WithAnswer(record);
  // ChatML accepts all messages of the corpus.
  const engine::RenderedChat chat = chat_.Render(messages, false).value();
  const engine::Encoding encoding = tokenizer_->EncodePieces(chat.TextPieces(), {});
  const std::vector<engine::ByteSpan> answers = AnswerSpans(chat, messages);

  Sample sample;
  sample.task = record.task;
  sample.difficulty = record.difficulty;
  sample.shots = record.shots;
  for (size_t i = 0; i < encoding.ids.size() && encoding.spans[i].begin < answers.back().end; ++i) {
    const engine::ByteSpan& span = encoding.spans[i];
    bool is_answer = false;
    for (const engine::ByteSpan& answer : answers) {
      is_answer |= span.begin >= answer.begin && span.end <= answer.end;
    }
    if (span.begin == answers.back().begin) sample.last_answer = i;
    sample.tokens.push_back(encoding.ids[i]);
    sample.answer.push_back(is_answer);
  }
  return sample;
}

}  // namespace withy::train

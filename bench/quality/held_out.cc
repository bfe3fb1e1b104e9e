#include "bench/quality/held_out.h"

#include <algorithm>

#include "base/status.h"
#include "engine/model/scratch_kv.h"

namespace withy::bench {

absl::StatusOr<std::vector<int32_t>> PromptIds(const engine::ModelBundle& bundle,
                                               const corpus::Record& record) {
  std::vector<engine::ChatMessage> messages;
  for (const corpus::Message& message : record.messages)
    messages.push_back({message.role, message.content, {}});
  WITHY_ASSIGN_OR_RETURN(engine::RenderedChat rendered, bundle.chat.Render(messages, true));
  if (bundle.tokenizer->wants_bos()) {
    rendered.DropFront(bundle.tokenizer->TokenText(bundle.tokenizer->bos_id()));
  }
  return bundle.tokenizer
      ->EncodePieces(rendered.TextPieces(), {.add_bos = bundle.tokenizer->wants_bos()})
      .ids;
}

absl::StatusOr<Question> Encode(const engine::ModelBundle& bundle, const corpus::Record& record) {
  Question question{record.task, record.difficulty, {}, {}, {}};
  WITHY_ASSIGN_OR_RETURN(question.prompt, PromptIds(bundle, record));
  question.answer = bundle.tokenizer->Encode(record.answer, {.add_bos = false, .continues = true});
  const int32_t turn_end = bundle.tokenizer->eot_id();
  question.answer.push_back(turn_end >= 0 ? turn_end : bundle.tokenizer->eos_id());
  for (const corpus::Message& message : record.messages) {
    question.messages.push_back({.role = message.role, .text = message.content});
  }
  return question;
}

absl::StatusOr<std::vector<Question>> EncodeAll(const engine::ModelBundle& bundle,
                                                const corpus::Spec& spec, int count) {
  const corpus::Generator generator(spec);
  std::vector<Question> questions;
  for (int i = 0; i < count; ++i) {
    WITHY_ASSIGN_OR_RETURN(Question question,
                           Encode(bundle, generator.At(static_cast<uint64_t>(i))));
    questions.push_back(std::move(question));
  }
  return questions;
}

absl::Status AnswerLogits(engine::Model& model, std::span<const int32_t> prompt,
                          std::span<const int32_t> answer, int32_t level,
                          std::vector<float>* logits) {
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  const size_t first = ids.size() - 1;  // its logits predict the answer's first token
  ids.insert(ids.end(), answer.begin(), answer.end() - 1);
  const engine::ScratchKv kv(model.info(), static_cast<int32_t>(ids.size()));
  std::vector<engine::Row> rows(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    rows[i] = {.token = ids[i],
               .position = position,
               .slot = position,
               .level = level,
               .want_logits = i >= first};
  }
  logits->resize(answer.size() * static_cast<size_t>(model.info().vocab_size));
  const engine::ContextView view = kv.View();
  return model.Forward({.rows = rows, .contexts = {&view, 1}}, logits->data());
}

int32_t Best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t AgreedTokens(std::span<const float> logits, std::span<const int32_t> answer) {
  const size_t vocabulary = logits.size() / answer.size();
  int32_t agreed = 0;
  for (size_t i = 0; i < answer.size(); ++i)
    agreed += Best(logits.subspan(i * vocabulary, vocabulary)) == answer[i] ? 1 : 0;
  return agreed;
}

}  // namespace withy::bench

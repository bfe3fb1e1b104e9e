#include "orchestrator/call/prompt_counter.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/reader.h"
#include "engine/session/segment.h"
#include "wire/wire.h"

namespace withy::orchestrator {
std::unique_ptr<PromptCounter> PromptCounter::Open(const v1::Config& config) {
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<PromptCounter>> {
    WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file,
                           engine::GgufFile::Open(config.model().path()));
    WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Tokenizer> tokenizer,
                           engine::MakeTokenizer(file, config.model().pre_tokenizer()));
    WITHY_ASSIGN_OR_RETURN(engine::ChatTemplate chat,
                           engine::ChatTemplate::FromFile(file, config.model().chat_template()));
    return std::unique_ptr<PromptCounter>(new PromptCounter(std::move(tokenizer), std::move(chat)));
  };
  auto counter = open();
  if (counter.ok()) return *std::move(counter);
  spdlog::info("model_worker is asked to count every prompt: {}",
               std::string(counter.status().message()));
  return nullptr;
}

PromptCounter::PromptCounter(std::unique_ptr<engine::Tokenizer> tokenizer,
                             engine::ChatTemplate chat)
    : tokenizer_(std::move(tokenizer)),
      chat_(std::move(chat)),
      encoder_(*tokenizer_, chat_),
      fingerprint_(encoder_.Fingerprint()) {}

absl::StatusOr<v1::TokenizeResponse> PromptCounter::Count(
    const v1::TokenizeRequest& request, const engine::CancelCheck* cancelled) const {
  WITHY_ASSIGN_OR_RETURN(const std::vector<engine::Segment> prompt,
                         engine::PromptFromWire(request.prompt(), request.kept()));
  WITHY_ASSIGN_OR_RETURN(const engine::EncodedConversation encoded,
                         encoder_.EncodePrompt(prompt, engine::ConversationEncoder::kNoWindow,
                                               /*recorded=*/0, cancelled));
  v1::TokenizeResponse response;
  response.set_prompt_tokens(static_cast<uint32_t>(encoded.ids.size()));
  response.set_answer_begins_in_thought(encoded.answer_begins_in_thought);
  return response;
}

std::vector<int32_t> PromptCounter::Encode(const std::string& text) const {
  const engine::TextPiece piece{.text = text, .parse_special = true};
  return tokenizer_->EncodePieces({&piece, 1}, {.add_bos = tokenizer_->wants_bos()}).ids;
}

absl::StatusOr<std::string> PromptCounter::TextOf(std::span<const int32_t> ids) const {
  std::vector<int32_t> wanted(ids.begin(), ids.end());
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer_->vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat("prompt has the token ", id,
                                                     ": the vocabulary has tokens from 0 to ",
                                                     tokenizer_->vocab_size() - 1));
    }
    text += tokenizer_->TokenBytes(id);
  }
  if (tokenizer_->wants_bos()) {
    const std::string_view bos = tokenizer_->TokenBytes(tokenizer_->bos_id());
    if (wanted.empty() || wanted.front() != tokenizer_->bos_id()) {
      wanted.insert(wanted.begin(), tokenizer_->bos_id());
    } else if (text.starts_with(bos)) {
      text.erase(0, bos.size());
    }
  }
  if (Encode(text) == wanted) return text;
  // Some vocabularies put a space before a text.
  if (text.starts_with(' ') && Encode(text.substr(1)) == wanted) return text.substr(1);
  return absl::InvalidArgumentError(
      "prompt: the model's tokenizer makes other tokens of the text of these: send the text "
      "itself, "
      "or tokens of this model's own tokenizer");
}

}  // namespace withy::orchestrator

#include "orchestrator/prompt_counter.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

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
  return response;
}

}  // namespace withy::orchestrator

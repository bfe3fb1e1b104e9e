// Counts prompts with the target's own tokenizer and chat template, read from the file that the
// worker serves, so that a call need not ask the worker first. Neighbours: prepare.cc, which asks
// the worker where this cannot tell: another file there, or a context before the prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/template.h"
#include "engine/session/conversation.h"
#include "engine/tokenizer/tokenizer.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::orchestrator {

// Thread-safe.
class PromptCounter {
 public:
  // From the file that `config` (filled) names. Null where it cannot be read here, which is logged:
  // the worker, that may be on another board, is then asked.
  static std::unique_ptr<PromptCounter> Open(const v1::Config& config);
  PromptCounter(const PromptCounter&) = delete;
  PromptCounter& operator=(const PromptCounter&) = delete;

  // Whether it counts as this worker does.
  bool Fits(const v1::GetWorkerInfoResponse& worker) const {
    return worker.encoder_fingerprint() == fingerprint_;
  }

  // As the worker would answer it: a stateless request. `cancelled` is asked meanwhile; null:
  // never. Errors: INVALID_ARGUMENT, CANCELLED.
  absl::StatusOr<v1::TokenizeResponse> Count(const v1::TokenizeRequest& request,
                                             const engine::CancelCheck* cancelled = nullptr) const;
  // The raw text that these tokens are the prompt of, with or without the token that begins a text.
  // Errors: INVALID_ARGUMENT if the tokenizer makes other tokens of their text.
  absl::StatusOr<std::string> TextOf(std::span<const int32_t> ids) const;

 private:
  std::vector<int32_t> Encode(const std::string& text) const;
  PromptCounter(std::unique_ptr<engine::Tokenizer> tokenizer, engine::ChatTemplate chat);

  const std::unique_ptr<engine::Tokenizer> tokenizer_;
  const engine::ChatTemplate chat_;
  const engine::ConversationEncoder encoder_;
  const uint64_t fingerprint_;
};

}  // namespace withy::orchestrator

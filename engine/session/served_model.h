// A model opened for serving: weights, tokenizer, chat template, conversation encoder and window.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/bundle.h"
#include "engine/session/conversation.h"
#include "engine/session/recommended_sampling.h"

namespace withy::engine {

struct ServedModelOptions {
  std::string path;
  TextOptions text;
  int32_t context_length = 0;  // 0 = the model's, at most kDefaultWindow
  ModelOptions model;
};

inline constexpr int32_t kDefaultWindow = 8192;

// Neither copyable nor movable: the encoder refers to the bundle.
struct ServedModel {
  explicit ServedModel(ModelBundle opened)
      : bundle(std::move(opened)), encoder(*bundle.tokenizer, bundle.chat) {}
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  ModelBundle bundle;
  ConversationEncoder encoder;
  int32_t window = 0;
  RecommendedSampling recommended;  // from the model file
};

// Errors: as OpenBundle; INVALID_ARGUMENT if `context_length` exceeds the model's.
absl::StatusOr<std::unique_ptr<ServedModel>> OpenServedModel(const ServedModelOptions& options);

}  // namespace withy::engine

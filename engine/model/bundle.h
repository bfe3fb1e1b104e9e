// A model with the tokenizer and chat template of the same file: what a worker loads.
// Neighbours: model.h, tokenizer/, chat/.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/chat/template.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

struct ModelBundle {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat;
};

// `chat_template`: a name of ChatTemplate::FromName, or "" for the file's own.
// Errors: as Model::Open, MakeTokenizer and ChatTemplate::FromFile; INVALID_ARGUMENT when tokenizer
// and model differ in vocabulary.
absl::StatusOr<ModelBundle> OpenBundle(const std::string& path, const ModelOptions& options,
                                       std::string_view chat_template = "");

}  // namespace withy::engine

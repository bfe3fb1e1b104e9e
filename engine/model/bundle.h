// A model with the tokenizer and chat template of the same file: what a worker loads, and whether
// it would load a file. Neighbours: model.h, tokenizer/, chat/.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/template.h"
#include "engine/gguf/reader.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/layout.h"

namespace withy::engine {

struct ModelBundle {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat;
};

// What a worker needs of a GGUF, as far as the file has it.
struct Servability {
  std::optional<PackedLayout> layout;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  std::vector<absl::Status> problems;  // all that tells against the file; empty: it can be served
};

// The one judgement of whether a file can be served, by a worker that is to open it and by
// `withyctl models inspect` alike. Reads no tensor bytes but RoPE's factors. `chat_template`: a
// name of ChatTemplate::FromName, or "" for the file's own. The layout refers to `file`.
Servability JudgeServability(const GgufFile& file, std::string_view chat_template);

// A GGUF that cannot be served is refused before it is packed.
// Errors: the first of JudgeServability's problems; as Model::Open, MakeTokenizer and
// ChatTemplate::FromFile; INVALID_ARGUMENT when tokenizer and model differ in vocabulary.
absl::StatusOr<ModelBundle> OpenBundle(const std::string& path, const ModelOptions& options,
                                       std::string_view chat_template = "");

}  // namespace withy::engine

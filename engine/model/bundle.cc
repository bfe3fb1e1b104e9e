#include "engine/model/bundle.h"

#include <utility>

#include "base/status.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {
namespace {

// Adds tokenizer and chat template of `metadata`. `vocab_size`: of the model; 0 when not known.
void JudgeParts(const GgufFile& metadata, int32_t vocab_size, std::string_view chat_template,
                Servability* out) {
  auto tokenizer = MakeTokenizer(metadata);
  if (tokenizer.ok()) {
    out->tokenizer = *std::move(tokenizer);
  } else {
    out->problems.push_back(tokenizer.status());
  }
  auto chat = ChatTemplate::FromFile(metadata, chat_template);
  if (chat.ok()) {
    out->chat = *std::move(chat);
  } else {
    out->problems.push_back(chat.status());
  }
  if (out->tokenizer == nullptr || vocab_size == 0) return;
  if (out->tokenizer->vocab_size() > vocab_size) {
    out->problems.push_back(absl::InvalidArgumentError(
        absl::StrCat(metadata.path(), ": the tokenizer has ", out->tokenizer->vocab_size(),
                     " tokens, the model ", vocab_size)));
  }
}

}  // namespace

Servability JudgeServability(const GgufFile& file, std::string_view chat_template) {
  Servability result;
  auto layout = PlanLayout(file);
  if (layout.ok()) {
    result.layout = *std::move(layout);
  } else {
    result.problems.push_back(layout.status());
  }
  JudgeParts(file, result.layout ? result.layout->shape.vocab_size : 0, chat_template, &result);
  return result;
}

absl::StatusOr<ModelBundle> OpenBundle(const std::string& path, const ModelOptions& options,
                                       std::string_view chat_template) {
  if (!PackedFile::LooksPacked(path)) {
    WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    const Servability judged = JudgeServability(file, chat_template);
    if (!judged.problems.empty()) return judged.problems.front();
  }
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Open(path, options));
  // Of the packed file: the GGUF may be another by now.
  Servability parts;
  JudgeParts(model->metadata(), model->info().vocab_size, chat_template, &parts);
  if (!parts.problems.empty()) return parts.problems.front();
  return ModelBundle{std::move(model), std::move(parts.tokenizer), *std::move(parts.chat)};
}

}  // namespace withy::engine

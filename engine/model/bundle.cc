#include "engine/model/bundle.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {
namespace {

// Adds tokenizer and chat template of `metadata`. `vocab_size`: of the model; 0: unknown.
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

// Whether a packed file's metadata equals the GGUF's. If so, the tokenizer and chat template that
// were read from the GGUF are used, and a large vocabulary is not read twice.
bool SameMetadata(const GgufFile& gguf, const GgufFile& packed) {
  return std::equal(gguf.metadata().begin(), gguf.metadata().end(), packed.metadata().begin(),
                    packed.metadata().end(), [](const MetadataEntry& a, const MetadataEntry& b) {
                      if (a.key != b.key || a.type != b.type) return false;
                      if (a.key == kGgufOwnTensors) return true;  // an offset within the GGUF
                      return a.element_type == b.element_type && a.count == b.count &&
                             std::equal(a.payload.begin(), a.payload.end(), b.payload.begin(),
                                        b.payload.end());
                    });
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
  std::optional<GgufFile> file;
  Servability judged;
  if (!PackedFile::LooksPacked(path)) {
    WITHY_ASSIGN_OR_RETURN(file, GgufFile::Open(path));
    judged = JudgeServability(*file, chat_template);
    if (!judged.problems.empty()) return judged.problems.front();
  }
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Open(path, options));
  if (!file || !SameMetadata(*file, model->metadata())) {
    judged = Servability();
    JudgeParts(model->metadata(), model->info().vocab_size, chat_template, &judged);
    if (!judged.problems.empty()) return judged.problems.front();
  }
  return ModelBundle{std::move(model), std::move(judged.tokenizer), *std::move(judged.chat)};
}

}  // namespace withy::engine

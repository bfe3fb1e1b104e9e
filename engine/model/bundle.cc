#include "engine/model/bundle.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/tokenizer/pre_tokenizer_choice.h"
#include "engine/weights/file_kind.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/packer.h"

namespace withy::engine {
namespace {

void Note(bool doubtful, const std::string& note, TextNotes* text) {
  if (!note.empty()) (doubtful ? text->warnings : text->notes).push_back(note);
}

// Adds tokenizer and chat template of `metadata`. `vocab_size`: of the model; 0: unknown.
void JudgeParts(const GgufFile& metadata, int32_t vocab_size, const TextOptions& text,
                Servability* out) {
  const PreTokenizerChoice pre = ChoosePreTokenizer(metadata, text.pre_tokenizer);
  Note(pre.doubtful, pre.note, &out->text);
  auto tokenizer = MakeTokenizer(metadata, text.pre_tokenizer);
  if (tokenizer.ok()) {
    out->tokenizer = *std::move(tokenizer);
  } else {
    out->problems.push_back(tokenizer.status());
  }
  auto chat = ChatTemplate::FromFile(metadata, text.chat_template);
  if (chat.ok()) {
    Note(chat->doubtful(), chat->note(), &out->text);
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
                      if (DescribesStorage(a.key)) return true;
                      return a.element_type == b.element_type && a.count == b.count &&
                             std::equal(a.payload.begin(), a.payload.end(), b.payload.begin(),
                                        b.payload.end());
                    });
}

}  // namespace

Servability JudgeServability(const GgufFile& file, const TextOptions& text) {
  Servability result;
  auto layout = JudgeLayout(file, &result.problems);
  if (layout.ok()) result.layout = *std::move(layout);
  if (!RecogniseFile(file).is_model) return result;
  JudgeParts(file, result.layout ? result.layout->shape.vocab_size : 0, text, &result);
  return result;
}

absl::StatusOr<ModelBundle> OpenBundle(const std::string& path, const ModelOptions& options,
                                       const TextOptions& text) {
  std::optional<GgufFile> file;
  Servability judged;
  if (!PackedFile::LooksPacked(path)) {
    absl::StatusOr<GgufFile> opened = GgufFile::Open(path);
    if (!opened.ok()) return WithPackedState(opened.status(), path, options.cache_dir);
    file = *std::move(opened);
    judged = JudgeServability(*file, text);
    WITHY_RETURN_IF_ERROR(JoinProblems(judged.problems));
  }
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Open(path, options));
  if (!file || !SameMetadata(*file, model->metadata())) {
    judged = Servability();
    JudgeParts(model->metadata(), model->info().vocab_size, text, &judged);
    WITHY_RETURN_IF_ERROR(JoinProblems(judged.problems));
  }
  return ModelBundle{std::move(model), std::move(judged.tokenizer), *std::move(judged.chat),
                     std::move(judged.text)};
}

absl::Status PackBundle(const std::string& path, const std::string& cache_dir, ThreadPool& pool,
                        const std::function<void(double done)>& progress,
                        const std::atomic<bool>* cancel) {
  if (PackedFile::LooksPacked(path)) return PackedFile::Open(path).status();
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  WITHY_RETURN_IF_ERROR(JoinProblems(JudgeServability(file, {}).problems));
  return EnsurePacked(
             path, cache_dir, pool,
             [&progress](double done, std::string_view /*what*/) { progress(done); }, nullptr,
             cancel)
      .status();
}

}  // namespace withy::engine

#include "engine/weights/file_kind.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/weights/overlay.h"

namespace withy::engine {
namespace {

std::string_view TextOf(const GgufFile& file, std::string_view key) {
  return file.GetStringOr(key, "").value_or("");
}

bool HasKeys(const GgufFile& file, std::string_view prefix) {
  return std::any_of(file.metadata().begin(), file.metadata().end(),
                     [&](const MetadataEntry& entry) { return entry.key.starts_with(prefix); });
}

bool HasTensor(const GgufFile& file, bool (*is)(std::string_view name)) {
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [&](const TensorInfo& tensor) { return is(tensor.name); });
}

absl::Status Refuse(const GgufFile& file, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", ToAbsl(what)));
}

// A file that belongs to a model but is none; OK if it is not one of those.
absl::Status RefuseCompanion(const GgufFile& file) {
  const std::string_view type = TextOf(file, "general.type");
  const std::string_view architecture = TextOf(file, "general.architecture");
  if (type == "adapter" || file.Has("adapter.type") || HasTensor(file, [](std::string_view name) {
        return name.ends_with(".lora_a") || name.ends_with(".lora_b");
      })) {
    const std::string kind(TextOf(file, "adapter.type"));
    return Refuse(file, absl::StrCat("it is an adapter (",
                                     kind.empty() ? "LoRA" : ValidUtf8(kind, kMaxShownBytes),
                                     "), not a model: merge it into its base model with "
                                     "llama-export-lora of llama.cpp, and serve the result"));
  }
  if (architecture == "controlvector" || HasKeys(file, "controlvector.") ||
      (!file.tensors().empty() &&
       std::all_of(file.tensors().begin(), file.tensors().end(), [](const TensorInfo& tensor) {
         return tensor.name.starts_with("direction.");
       }))) {
    return Refuse(file,
                  "it is a control vector, not a model, and withy applies none: serve the model "
                  "that it was made for without it");
  }
  if (type == "imatrix" || HasKeys(file, "imatrix.") ||
      HasTensor(file, [](std::string_view name) { return name.ends_with(".in_sum2"); })) {
    return Refuse(file,
                  "it is an importance matrix, which llama-quantize of llama.cpp takes, not a "
                  "model: name the model's own file");
  }
  if (type == "mmproj" || architecture == "clip" ||
      (architecture.empty() && HasKeys(file, "clip."))) {
    return Refuse(file,
                  "it is a projector of images or sound (mmproj) that belongs beside a model, and "
                  "withy serves text only: name the model's own file");
  }
  if (IsDraftHead(file)) {
    return Refuse(file,
                  "it is a draft head (EAGLE-3) of a model, not a model: serve the model that it "
                  "was trained for, and name this file in model.head_path");
  }
  if (IsOverlay(file)) {
    return Refuse(file,
                  "it is an overlay, which adds levels to a model, not a model: withyctl models "
                  "overlay FILE.gguf --overlay this file --out ELASTIC.gguf applies it");
  }
  if (type == "vocab" || (file.tensors().empty() && file.Has("tokenizer.ggml.tokens"))) {
    return Refuse(file,
                  "it is a vocabulary without weights (it has no tensors): name the model's own "
                  "file, or convert the model again without --vocab-only");
  }
  return absl::OkStatus();
}

// A model whose output is no text; OK if it is not one.
absl::Status RefuseEmbedding(const GgufFile& file) {
  const std::string key =
      absl::StrCat(ToAbsl(TextOf(file, "general.architecture")), ".pooling_type");
  const int64_t pooling = file.GetIntOr(key, 0).value_or(0);
  constexpr int64_t kRank = 4;
  if (pooling <= 0 || pooling == int64_t{UINT32_MAX}) return absl::OkStatus();
  const std::string_view what = pooling == kRank ? "a reranker, whose output is a rank"
                                                 : "an embedding model, whose output is a vector";
  return absl::UnimplementedError(absl::StrCat(
      file.path(), ": it is ", ToAbsl(what), " (", ValidUtf8(key, kMaxShownBytes), " is ", pooling,
      "); withy serves models that generate text: choose one of those"));
}

}  // namespace

bool IsDraftHead(const GgufFile& file) {
  return TextOf(file, "general.architecture") == kDraftHeadArchitecture;
}

FileKind RecogniseFile(const GgufFile& file) {
  FileKind kind;
  if (absl::Status companion = RefuseCompanion(file); !companion.ok()) {
    kind.problems.push_back(std::move(companion));
    kind.is_model = kind.has_weights = false;
    return kind;
  }
  if (absl::Status embedding = RefuseEmbedding(file); !embedding.ok()) {
    kind.problems.push_back(std::move(embedding));
  }
  return kind;
}

}  // namespace withy::engine

// Recognises GGUF files that are no model that generates text, so that they are named as what they
// are and not by the keys that they lack. Neighbours: layout.h and shape.h judge what is a model;
// gguf/split.h joins the parts of one.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

struct FileKind {
  bool is_model = true;     // has the metadata of a model: shape and vocabulary
  bool has_weights = true;  // its tensors are those of a model
  // What it is instead, each with what to do. INVALID_ARGUMENT: an adapter, a control vector, an
  // importance matrix, a projector, a draft head, an overlay, a vocabulary without weights.
  // UNIMPLEMENTED: an embedding model or a reranker.
  std::vector<absl::Status> problems;
};

// general.architecture of draft heads, as llama.cpp's converter writes them.
inline constexpr std::string_view kDraftHeadArchitecture = "eagle3";
// Whether it is a draft head (engine/head/head_file.h).
bool IsDraftHead(const GgufFile& file);

// Reads keys and names of tensors only.
FileKind RecogniseFile(const GgufFile& file);

}  // namespace withy::engine

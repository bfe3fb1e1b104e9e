// A model with the tokenizer and chat template of the same file: what a worker loads. Also checks
// whether a worker could load a file. Neighbours: model.h, tokenizer/, chat/.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/template.h"
#include "engine/cpu/thread_pool.h"
#include "engine/gguf/reader.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/layout.h"

namespace withy::engine {

// Replaces what the file says of its text; empty: the file's own.
struct TextOptions {
  std::string chat_template = {};  // a name of ChatTemplate::FromName
  std::string pre_tokenizer = {};  // a name of FindPreTokenizer
};

// What was concluded of a file that does not say how its text is written. For people.
struct TextNotes {
  std::vector<std::string> notes;
  std::vector<std::string> warnings;  // answers may be worse than the model's
};

struct ModelBundle {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat;
  TextNotes text = {};
};

// What a worker needs of a GGUF, as far as the file has it.
struct Servability {
  std::optional<PackedLayout> layout;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  TextNotes text;
  std::vector<absl::Status> problems;  // every reason why not; empty: the file can be served
};

// Checks whether a file can be served. A worker that opens a file and `withyctl models inspect`
// both use this check. Reads no tensor bytes except RoPE's factors. The layout refers to `file`.
Servability JudgeServability(const GgufFile& file, const TextOptions& text);

// Opens a packed file or a GGUF. A GGUF that cannot be served is refused before it is packed.
// Errors: JudgeServability's problems in one; as Model::Open, MakeTokenizer and
// ChatTemplate::FromFile; INVALID_ARGUMENT if the tokenizer has more tokens than the model.
absl::StatusOr<ModelBundle> OpenBundle(const std::string& path, const ModelOptions& options,
                                       const TextOptions& text = {});

// Packs the GGUF `path` into `cache_dir`, so that OpenBundle finds it packed. A packed file is only
// looked at. Errors: JudgeServability's problems in one; as EnsurePacked; as PackedFile::Open.
absl::Status PackBundle(const std::string& path, const std::string& cache_dir, ThreadPool& pool,
                        const std::function<void(double done)>& progress,
                        const std::atomic<bool>* cancel);

}  // namespace withy::engine

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/spm.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model == "gpt2") return MakeBpeTokenizer(file);
  if (model == "llama") return MakeSpmTokenizer(file);
  return absl::UnimplementedError(
      absl::StrCat(file.path(), ": metadata key \"tokenizer.ggml.model\" is \"", ToAbsl(model),
                   "\"; known are gpt2 (byte-level BPE) and llama (SentencePiece)"));
}

}  // namespace withy::engine

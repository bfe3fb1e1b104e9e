#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/spm.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/wordpiece.h"

namespace withy::engine {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file,
                                                         std::string_view pre_tokenizer) {
  WITHY_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model == "gpt2") return MakeBpeTokenizer(file, pre_tokenizer);
  if (model == "llama") return MakeSpmTokenizer(file);
  if (model == "bert") return MakeWordPieceTokenizer(file);
  return absl::UnimplementedError(absl::StrCat(
      file.path(), ": metadata key \"tokenizer.ggml.model\" is \"",
      ValidUtf8(model, kMaxShownBytes),
      "\"; known are gpt2 (byte-level BPE), llama (SentencePiece) and bert (WordPiece)"));
}

}  // namespace withy::engine

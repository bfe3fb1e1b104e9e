#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/spm.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unigram/unigram.h"
#include "engine/tokenizer/wordpiece.h"

namespace withy::engine {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeNamed(const GgufFile& file,
                                                     std::string_view pre_tokenizer) {
  WITHY_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model == "gpt2") return MakeBpeTokenizer(file, pre_tokenizer);
  if (model == "llama") return MakeSpmTokenizer(file);
  if (model == "t5") return MakeUnigramTokenizer(file);
  if (model == "bert") return MakeWordPieceTokenizer(file);
  return absl::UnimplementedError(
      absl::StrCat(file.path(), ": metadata key \"tokenizer.ggml.model\" is \"",
                   ValidUtf8(model, kMaxShownBytes),
                   "\"; known are gpt2 (byte-level BPE), llama (SentencePiece), t5 (Unigram) and "
                   "bert (WordPiece)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file,
                                                         std::string_view pre_tokenizer) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> made = MakeNamed(file, pre_tokenizer);
  const absl::Status& status = made.status();
  if (!absl::IsInvalidArgument(status) && !absl::IsNotFound(status)) return made;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   "; the vocabulary is damaged or incomplete: download the model "
                                   "again, or convert it again"));
}

}  // namespace withy::engine

// Converts text to token ids and back, as the model file specifies (SentencePiece-like, Unigram,
// byte-level BPE or WordPiece). Neighbours: chat/ makes the pieces to encode, sampling/ picks ids.
// Does not know prompts or models.
//
//   WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(file));
//   std::vector<int32_t> ids = tokenizer->Encode("Hello", {.add_bos = true});
//   StreamDecoder decoder(*tokenizer);
//   for (int32_t id : ids) std::cout << decoder.Push(id);
//   std::cout << decoder.Flush();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/cancel.h"
#include "engine/tokenizer/text.h"

namespace withy::engine {

inline constexpr int32_t kNoToken = -1;

struct EncodeOptions {
  bool add_bos = false;  // begin with the beginning-of-sequence token if the vocabulary has one
  // The text continues previously encoded text: SentencePiece adds no leading space.
  bool continues = false;
  bool parse_special = false;  // for Encode(text): texts of control tokens become those tokens
  // Polled during encoding; null: not cancellable. Borrowed.
  const CancelCheck* cancelled = nullptr;
};

// spans[i] is the byte range of the input (the concatenated pieces) that ids[i] represents; empty
// for tokens without input (BOS, SentencePiece's leading space). Spans are in order and cover the
// input without gaps or overlaps: dropped characters belong to a neighbouring token. If all input
// was dropped, no token covers it.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<ByteSpan> spans;
  bool cancelled = false;  // EncodeOptions::cancelled returned true: ids and spans are incomplete
};

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Pieces are encoded as one text: tokens may cross piece borders, control tokens never do.
  // Accepts any bytes. Time is O(n log n) in the longest word and O(n) in the text. Texts are cut
  // at 1 GiB. Without `parse_special` no text becomes a control token or a token that ends an
  // answer. A character without a token is dropped. SentencePiece and Unigram without byte tokens
  // and WordPiece replace it by the unknown token, if the file has one that means nothing else.
  virtual Encoding EncodePieces(std::span<const TextPiece> pieces,
                                const EncodeOptions& options) const = 0;
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes that the ids represent; may be invalid UTF-8. Control tokens give nothing unless
  // `render_special`; ids outside the vocabulary give nothing. Encode() without special parsing and
  // then Decode() returns the input without dropped characters (SentencePiece's leading space is
  // removed again); for vocabularies that normalise text (Qwen's, Unigram), the normalised input.
  std::string Decode(std::span<const int32_t> ids, bool render_special = false) const;

  virtual int32_t vocab_size() const = 0;
  // The vocabulary's text of the token ("Ġthe", "▁the", "<0x0A>"); empty if out of range.
  virtual std::string_view TokenText(int32_t id) const = 0;
  // The bytes a token adds to the output (" the", "\n"); a control token's text. Empty if out of
  // range.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  virtual bool IsControl(int32_t id) const = 0;
  // Control tokens and user-defined tokens, which are matched before text is split into words.
  virtual bool IsSpecial(int32_t id) const = 0;
  // The id whose vocabulary text is exactly `text`.
  virtual std::optional<int32_t> FindToken(std::string_view text) const = 0;

  // kNoToken if the vocabulary has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t eot_id() const = 0;  // end of turn
  // Tokens that end an answer, ascending: eos, eot and eom of the metadata, and tokens recognised
  // by their text (the same set as in llama.cpp). All are control tokens.
  virtual std::span<const int32_t> end_of_generation_ids() const = 0;
  bool IsEndOfGeneration(int32_t id) const;
  // True if the file requests BOS before a prompt.
  virtual bool wants_bos() const = 0;
  // True if encoding adds a space before the first word, which Decode() removes.
  virtual bool adds_space_prefix() const = 0;

  // Hash of all token texts and special ids. Equal for models that can draft for each other.
  virtual uint64_t fingerprint() const = 0;
};

// Reads the metadata tokenizer.ggml.*. The result does not refer to `file`. `pre_tokenizer`: name
// that replaces the file's of a byte-level BPE vocabulary (pre_tokenizer_choice.h), or "".
// Errors: NotFound/InvalidArgument naming file and key for missing, malformed or inconsistent
// metadata (different lengths, ids out of range, merges of unknown tokens, more than 2^24 tokens);
// Unimplemented naming an unsupported tokenizer model or pre-tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file,
                                                         std::string_view pre_tokenizer = "");

// Turns a stream of ids into valid UTF-8 text. Holds back the bytes of an incomplete character;
// replaces bytes that cannot form a character by U+FFFD. Not thread-safe; `tokenizer` must outlive
// it.
class StreamDecoder {
 public:
  // `shown`: control tokens that give their texts.
  explicit StreamDecoder(const Tokenizer& tokenizer, std::vector<int32_t> shown = {})
      : tokenizer_(tokenizer), shown_(std::move(shown)) {}
  // Returns the text that this token completes. Control tokens give nothing.
  std::string Push(int32_t id);
  // Returns the text held back; an incomplete character becomes U+FFFD.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> shown_;
  std::string held_;  // at most 3 bytes
};

}  // namespace withy::engine

// Text to token ids and back, as the model's file says (SentencePiece-like or byte-level BPE).
// Neighbours: chat/ makes the pieces that are encoded here; sampling/ picks ids. Does not know
// prompts or models.
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
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/cancel.h"
#include "engine/tokenizer/text.h"

namespace withy::engine {

inline constexpr int32_t kNoToken = -1;

struct EncodeOptions {
  bool add_bos = false;  // put the beginning-of-sequence token first, when the vocabulary has one
  // The text goes on from text that was encoded before: SentencePiece puts no space first.
  bool continues = false;
  bool parse_special = false;  // for Encode(text): texts of control tokens become those tokens
  // Asked while the text is encoded; null: the encoding always goes to its end. Borrowed.
  const CancelCheck* cancelled = nullptr;
};

// spans[i] is the range of input bytes (of the concatenated pieces) that ids[i] stands for; empty
// for tokens that stand for no input (BOS, the space that SentencePiece puts first). Spans are in
// order and cover the input without gaps or overlaps: characters that were dropped belong to a
// neighbouring token. Input of which nothing is left has no token that covers it.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<ByteSpan> spans;
  bool cancelled = false;  // EncodeOptions::cancelled held: ids and spans are incomplete
};

// Immutable: all methods may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Pieces are encoded as one text: tokens may cross from a piece into the next, control tokens
  // never do. Any bytes are accepted. Time is O(n log n) in the longest word, O(n) in the text.
  // Texts of 1 GiB and more are cut there.
  // Outside pieces with `parse_special` no text becomes a control token or one that ends an answer.
  // A character for which the vocabulary has no token is dropped; SentencePiece without byte tokens
  // and WordPiece give the unknown token in its place, where the file has one that means only that.
  virtual Encoding EncodePieces(std::span<const TextPiece> pieces,
                                const EncodeOptions& options) const = 0;
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes that ids stand for; may be invalid UTF-8. Control tokens give nothing unless
  // `render_special`, ids outside the vocabulary nothing. Encode() without special parsing followed
  // by Decode() returns the input (SentencePiece: its added first space is removed again) less the
  // characters that the vocabulary has no token for.
  std::string Decode(std::span<const int32_t> ids, bool render_special = false) const;

  virtual int32_t vocab_size() const = 0;
  // The vocabulary's own text of the token ("Ġthe", "▁the", "<0x0A>"); empty when out of range.
  virtual std::string_view TokenText(int32_t id) const = 0;
  // The bytes a token adds to the output (" the", "\n"); a control token's text. Empty when out of
  // range.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  virtual bool IsControl(int32_t id) const = 0;
  // Control tokens and those cut out of any text before words are formed (user-defined ones).
  virtual bool IsSpecial(int32_t id) const = 0;
  // The id whose vocabulary text is exactly `text`.
  virtual std::optional<int32_t> FindToken(std::string_view text) const = 0;

  // kNoToken when the vocabulary has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t eot_id() const = 0;  // end of turn
  // Tokens that end an answer, ascending: eos, eot, eom of the metadata, and those whose text says
  // so (as llama.cpp collects them). All are control tokens.
  virtual std::span<const int32_t> end_of_generation_ids() const = 0;
  bool IsEndOfGeneration(int32_t id) const;
  // True when the file asks for BOS before a prompt.
  virtual bool wants_bos() const = 0;
  // True when encoding puts a space before the first word, which Decode() then removes.
  virtual bool adds_space_prefix() const = 0;

  // Hash of all token texts and special ids: equal for models that can draft for each other.
  virtual uint64_t fingerprint() const = 0;
};

// From the metadata tokenizer.ggml.*. The result does not refer to `file`.
// Errors: NotFound/InvalidArgument naming file and key for missing, malformed or inconsistent
// metadata (lengths that differ, ids out of range, merges of unknown tokens, more than 2^24
// tokens); Unimplemented naming the tokenizer model or pre-tokenizer that is not known.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file);

// Turns a stream of ids into valid UTF-8 text: bytes of an unfinished character are held back until
// it is complete; bytes that can never become one turn into U+FFFD. Not thread-safe; `tokenizer`
// must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The text that became certain by this token; control tokens give nothing.
  std::string Push(int32_t id);
  // What was held back, an unfinished character as U+FFFD.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;  // at most 3 bytes
};

}  // namespace withy::engine

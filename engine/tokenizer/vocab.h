// A GGUF file's vocabulary: texts, kinds and special ids of its tokens, validated; and the part of
// Tokenizer that needs nothing else. Neighbours: bpe.cc, spm.cc and wordpiece.cc add the encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/cancel.h"
#include "engine/tokenizer/special_matcher.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Values of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Defaults of a tokenizer model for files without these settings.
struct VocabDefaults {
  int32_t bos = kNoToken;
  int32_t eos = kNoToken;
  int32_t unknown = kNoToken;
  bool add_bos = false;
};

// Immutable after Load(). Views into it stay valid when it is moved.
class Vocab {
 public:
  // Errors: as MakeTokenizer().
  static absl::StatusOr<Vocab> Load(const GgufFile& file, const VocabDefaults& defaults);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  bool Has(int32_t id) const { return id >= 0 && id < size(); }
  std::string_view text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  TokenKind kind(int32_t id) const { return kinds_[static_cast<size_t>(id)]; }
  std::optional<int32_t> Find(std::string_view text) const;

  // True for a control or unknown token: no ordinary text may become it. True for all tokens of
  // `end_of_generation`.
  bool IsControl(int32_t id) const {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }

  int32_t bos = kNoToken;
  int32_t eos = kNoToken;
  int32_t eot = kNoToken;
  int32_t unknown = kNoToken;  // from the file
  // Token for text without a token: `unknown`, or kNoToken if that token also has another meaning.
  // Some files name the end of text, a separator or padding as their unknown token.
  int32_t unknown_in_text = kNoToken;
  bool add_bos = false;
  std::vector<int32_t> end_of_generation;  // ascending

 private:
  absl::Status LoadTokens(const GgufFile& file);
  absl::Status LoadKinds(const GgufFile& file);
  absl::Status LoadSpecialIds(const GgufFile& file, const VocabDefaults& defaults);
  void FindMarkers();
  void CheckUnknown();

  std::vector<std::string> texts_;
  std::vector<TokenKind> kinds_;
  std::vector<int32_t> others_;  // separator, padding and similar tokens from the metadata
  // Keys are views into texts_; of equal texts the lowest id.
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
};

// All of Tokenizer except EncodePieces().
class VocabTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return vocab_.size(); }
  std::string_view TokenText(int32_t id) const override;
  std::string_view TokenBytes(int32_t id) const override;
  bool IsControl(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  std::optional<int32_t> FindToken(std::string_view text) const override {
    return vocab_.Find(text);
  }
  int32_t bos_id() const override { return vocab_.bos; }
  int32_t eos_id() const override { return vocab_.eos; }
  int32_t eot_id() const override { return vocab_.eot; }
  std::span<const int32_t> end_of_generation_ids() const override {
    return vocab_.end_of_generation;
  }
  bool wants_bos() const override { return vocab_.add_bos; }
  bool adds_space_prefix() const override { return false; }
  uint64_t fingerprint() const override { return fingerprint_; }

 protected:
  // `bytes[id]` is the text that the token adds when decoded. With `strip_after_control`, white
  // space after a control token belongs to it.
  VocabTokenizer(Vocab vocab, std::vector<std::string> bytes, bool strip_after_control);

  // Result of the first step of EncodePieces(): pieces joined and special tokens found. The
  // subclass encodes the text between them.
  struct Prepared {
    std::string joined;                  // storage if there is more than one piece
    std::string_view text;               // the whole input
    std::vector<SpecialMatch> specials;  // in order, not overlapping
  };
  // Adds BOS to `out` if requested.
  void Prepare(std::span<const TextPiece> pieces, const EncodeOptions& options, CancelPoll& poll,
               Prepared& prepared, Encoding& out) const;
  // EncodePieces() of a subclass that appends each special token as it is. `encode(text, begin,
  // end, first, poll, out)` encodes a part of the text that has none, which may be empty; `first`:
  // no special token stands before it.
  template <typename EncodeText>
  Encoding EncodeBetweenSpecials(std::span<const TextPiece> pieces, const EncodeOptions& options,
                                 const EncodeText& encode) const {
    Prepared prepared;
    Encoding out;
    CancelPoll poll(options.cancelled);
    Prepare(pieces, options, poll, prepared, out);
    uint32_t at = 0;
    bool first = true;
    for (const SpecialMatch& special : prepared.specials) {
      encode(prepared.text, at, special.begin, first, poll, out);
      Append(special.id, {special.begin, special.end}, out);
      at = special.end;
      first = false;
    }
    encode(prepared.text, at, static_cast<uint32_t>(prepared.text.size()), first, poll, out);
    out.cancelled = poll.stopped();
    return out;
  }
  // Appends a token; its span includes characters dropped before it.
  static void Append(int32_t id, ByteSpan span, Encoding& out);
  // Adds text without a token to the span of the previous token, or else of the next one.
  static void Drop(ByteSpan span, Encoding& out);

  const Vocab& vocab() const { return vocab_; }

 private:
  Vocab vocab_;
  std::vector<std::string> bytes_;
  SpecialMatcher specials_;
  uint64_t fingerprint_;
};

}  // namespace withy::engine

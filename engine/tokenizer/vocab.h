// The vocabulary of a GGUF file: texts, kinds and special ids of its tokens, checked; and the half
// of Tokenizer that only needs these. Neighbours: bpe.cc, spm.cc and wordpiece.cc add the way text
// is cut.
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
#include "engine/tokenizer/special_matcher.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// As numbered in tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What a tokenizer model assumes when the file does not say.
struct VocabDefaults {
  int32_t bos = kNoToken;
  int32_t eos = kNoToken;
  int32_t unknown = kNoToken;
  bool add_bos = false;
};

// Immutable after Load(). Moving keeps views into it valid.
class Vocab {
 public:
  // Errors: as MakeTokenizer().
  static absl::StatusOr<Vocab> Load(const GgufFile& file, const VocabDefaults& defaults);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  bool Has(int32_t id) const { return id >= 0 && id < size(); }
  std::string_view text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  TokenKind kind(int32_t id) const { return kinds_[static_cast<size_t>(id)]; }
  std::optional<int32_t> Find(std::string_view text) const;

  // Whether no ordinary text may become this token: it is a control token or the unknown one. True
  // for every token of `end_of_generation`.
  bool IsControl(int32_t id) const {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }

  int32_t bos = kNoToken;
  int32_t eos = kNoToken;
  int32_t eot = kNoToken;
  int32_t unknown = kNoToken;  // as the file says
  // What may stand in a prompt for text without a token: `unknown`, unless that token also means
  // something else. Files name the end of text, a separator or padding as their unknown token.
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
  std::vector<int32_t> others_;  // separator, padding and the like, as the metadata names them
  absl::flat_hash_map<absl::string_view, int32_t>
      ids_;  // views into texts_; the lowest id of equal texts
};

// Everything of Tokenizer but EncodePieces().
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
  // `bytes[id]` is what the token adds to decoded text. With `strip_after_control`, white space
  // after a control token belongs to it.
  VocabTokenizer(Vocab vocab, std::vector<std::string> bytes, bool strip_after_control);

  // What EncodePieces() begins with: the pieces joined, special tokens found. The subclass encodes
  // the texts between these.
  struct Prepared {
    std::string joined;                  // storage when there is more than one piece
    std::string_view text;               // the whole input
    std::vector<SpecialMatch> specials;  // in order, not overlapping
  };
  // `out` gets BOS if wanted.
  void Prepare(std::span<const TextPiece> pieces, const EncodeOptions& options, CancelPoll& poll,
               Prepared& prepared, Encoding& out) const;
  // Appends a token, and to its span what was dropped before it.
  static void Append(int32_t id, ByteSpan span, Encoding& out);
  // Text without a token: the token before takes its bytes, or else the next one.
  static void Drop(ByteSpan span, Encoding& out);

  const Vocab& vocab() const { return vocab_; }

 private:
  Vocab vocab_;
  std::vector<std::string> bytes_;
  SpecialMatcher specials_;
  uint64_t fingerprint_;
};

}  // namespace withy::engine

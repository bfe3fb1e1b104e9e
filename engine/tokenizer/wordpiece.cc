#include "engine/tokenizer/wordpiece.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {
namespace {

// Precedes the first piece of a word in files; other pieces are plain.
constexpr std::string_view kWordMark = "\xE2\x96\x81";
constexpr size_t kMaxWordChars = 100;  // longer words are unknown

bool IsIdeograph(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [code](const auto& range) {
    return code >= range.first && code <= range.second;
  });
}

// BERT's punctuation: Unicode's, and every ASCII symbol.
bool IsPunctuation(char32_t code) {
  const uint16_t classes = ClassesOf(code);
  return (classes & kCharPunct) != 0 || (code < 0x80 && (classes & kCharSymbol) != 0);
}

// A normalised word.
struct Word {
  std::string text;
  std::vector<ByteSpan> sources;  // source range of each byte of `text`
  size_t chars = 0;
};

class WordPieceTokenizer final : public VocabTokenizer {
 public:
  WordPieceTokenizer(Vocab vocab, std::vector<std::string> bytes, const UNormalizer2* decomposer)
      : VocabTokenizer(std::move(vocab), std::move(bytes), false), decomposer_(decomposer) {
    for (int32_t id = 0; id < vocab_size(); ++id)
      longest_ = std::max(longest_, TokenText(id).size());
  }

  Encoding EncodePieces(std::span<const TextPiece> pieces,
                        const EncodeOptions& options) const override {
    Prepared prepared;
    Encoding out;
    CancelPoll poll(options.cancelled);
    Prepare(pieces, options, poll, prepared, out);
    uint32_t at = 0;
    for (const SpecialMatch& special : prepared.specials) {
      EncodeText(prepared.text, at, special.begin, poll, out);
      out.ids.push_back(special.id);
      out.spans.push_back({special.begin, special.end});
      at = special.end;
    }
    EncodeText(prepared.text, at, static_cast<uint32_t>(prepared.text.size()), poll, out);
    Close(prepared.text.size(), out);
    out.cancelled = poll.stopped();
    return out;
  }

 private:
  void EncodeText(std::string_view text, uint32_t begin, uint32_t end, CancelPoll& poll,
                  Encoding& out) const {
    Word word;
    const auto finish = [&] {
      if (!word.text.empty()) EncodeWord(word, out);
      word = Word();
    };
    const std::vector<Char> chars = DecodeChars(text.substr(begin, end - begin), &poll);
    for (size_t i = 0; i < chars.size() && !poll.Stop(); ++i) {
      const uint32_t char_end = i + 1 < chars.size() ? begin + chars[i + 1].begin : end;
      const ByteSpan source = {begin + chars[i].begin, char_end};
      if ((chars[i].classes & kCharSpace) != 0) {
        finish();
        continue;
      }
      if (chars[i].code == kReplacementChar || (chars[i].classes & kCharControl) != 0) continue;
      const bool alone = IsPunctuation(chars[i].code) || IsIdeograph(chars[i].code);
      if (alone) finish();
      AppendNormalised(chars[i].code, source, word);
      if (alone) finish();
    }
    finish();
  }

  // Appends the character decomposed, without accents, in lower case.
  void AppendNormalised(char32_t code, ByteSpan source, Word& word) const {
    UChar units[32];
    UErrorCode error = U_ZERO_ERROR;
    int32_t count =
        unorm2_getDecomposition(decomposer_, static_cast<UChar32>(code), units, 32, &error);
    if (count < 0 || U_FAILURE(error)) {
      count = 0;
      U16_APPEND_UNSAFE(units, count, static_cast<UChar32>(code));
    }
    for (int32_t i = 0; i < count;) {
      UChar32 part = 0;
      U16_NEXT_UNSAFE(units, i, part);
      if (u_charType(part) == U_NON_SPACING_MARK) continue;
      AppendUtf8(static_cast<char32_t>(u_tolower(part)), word.text);
      word.sources.resize(word.text.size(), source);
      ++word.chars;
    }
  }

  void EncodeWord(const Word& word, Encoding& out) const {
    const size_t first = out.ids.size();
    bool known = word.chars <= kMaxWordChars;
    for (size_t at = 0; known && at < word.text.size();) {
      const size_t mark = at == 0 ? kWordMark.size() : 0;
      size_t length = std::min(word.text.size() - at, longest_ - std::min(longest_, mark));
      std::optional<int32_t> id;
      for (; length > 0 && !id; length -= id ? 0 : 1)
        id = FindPiece(word.text, at, length, mark != 0);
      known = id.has_value();
      if (!known) break;
      out.ids.push_back(*id);
      out.spans.push_back({word.sources[at].begin, word.sources[at + length - 1].end});
      at += length;
    }
    if (known) return;
    out.ids.resize(first);
    out.spans.resize(first);
    if (vocab().unknown_in_text == kNoToken) return;
    out.ids.push_back(vocab().unknown_in_text);
    out.spans.push_back({word.sources.front().begin, word.sources.back().end});
  }

  std::optional<int32_t> FindPiece(const std::string& text, size_t at, size_t length,
                                   bool starts) const {
    const std::string_view piece = std::string_view(text).substr(at, length);
    const std::optional<int32_t> id =
        starts ? vocab().Find(absl::StrCat(ToAbsl(kWordMark), ToAbsl(piece))) : vocab().Find(piece);
    // Spelling the text of a control token, such as one that ends an answer, does not find it.
    return id && !IsControl(*id) ? id : std::nullopt;
  }

  // Adds white space and dropped characters to the span of the previous token, or of the first one,
  // so that spans cover the input.
  static void Close(size_t bytes, Encoding& out) {
    const auto first = std::find_if(out.spans.begin(), out.spans.end(),
                                    [](const ByteSpan& span) { return span.end > span.begin; });
    if (first != out.spans.end()) first->begin = 0;
    for (size_t i = 0; i < out.spans.size(); ++i) {
      const uint32_t next =
          i + 1 < out.spans.size() ? out.spans[i + 1].begin : static_cast<uint32_t>(bytes);
      const bool stands_for_text = out.spans[i].end > out.spans[i].begin;
      if (stands_for_text && out.spans[i].end < next) out.spans[i].end = next;
    }
  }

  const UNormalizer2* decomposer_;  // owned by ICU, never freed
  size_t longest_ = 0;              // bytes of the longest token text
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(const GgufFile& file) {
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* decomposer = unorm2_getNFDInstance(&error);
  if (U_FAILURE(error)) {
    return absl::InternalError(absl::StrCat("ICU has no normalisation data: ", u_errorName(error)));
  }
  WITHY_ASSIGN_OR_RETURN(
      Vocab vocab, Vocab::Load(file, {.bos = 101, .eos = 102, .unknown = 100, .add_bos = true}));
  if (vocab.unknown == kNoToken) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tokenizer.ggml.unknown_token_id is missing"));
  }
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(vocab.size()));
  for (int32_t id = 0; id < vocab.size(); ++id) {
    bytes.push_back(absl::StrReplaceAll(ToAbsl(vocab.text(id)), {{ToAbsl(kWordMark), " "}}));
  }
  return std::make_unique<WordPieceTokenizer>(std::move(vocab), std::move(bytes), decomposer);
}

}  // namespace withy::engine

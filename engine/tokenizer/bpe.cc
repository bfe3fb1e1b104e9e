#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/tokenizer/mapped_text.h"
#include "engine/tokenizer/normal_form.h"
#include "engine/tokenizer/pre_tokenizer_choice.h"
#include "engine/tokenizer/split.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {
namespace {

// Byte-level vocabularies write each byte as one printable character: printable Latin-1 bytes as
// themselves, the others as U+0100 and on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 0x100;
    bytes_.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      codes_[static_cast<size_t>(byte)] = printable ? static_cast<char32_t>(byte) : next++;
      bytes_[codes_[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
    }
  }

  std::string TextOf(uint8_t byte) const {
    std::string text;
    AppendUtf8(codes_[byte], text);
    return text;
  }

  // The bytes a token's text stands for; characters outside the alphabet stand for themselves.
  std::string BytesOf(std::string_view text) const {
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
      char32_t code = 0;
      const size_t length = std::max<size_t>(1, Utf8CharAt(text, at, &code));
      if (code < bytes_.size() && bytes_[code] >= 0) {
        bytes += static_cast<char>(bytes_[code]);
      } else {
        bytes.append(text.substr(at, length));
      }
      at += length;
    }
    return bytes;
  }

 private:
  std::array<char32_t, 256> codes_;
  std::array<int16_t, 0x180> bytes_;  // by character
};

struct Merge {
  int32_t rank = 0;
  int32_t id = 0;
};

using MergeTable = absl::flat_hash_map<uint64_t, Merge>;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A word being merged: a linked list of tokens over its bytes.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;  // -1 at the end
  uint32_t begin;
};

struct Candidate {
  int32_t rank;
  int32_t left;  // symbol index
  int32_t left_id;
  int32_t right_id;
  int32_t merged_id;
  // The smallest rank first, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

constexpr int32_t kMergedAway = -2;

class BpeTokenizer final : public VocabTokenizer {
 public:
  BpeTokenizer(Vocab vocab, std::vector<std::string> bytes, PreTokenizerInfo pre, MergeTable merges,
               const std::array<int32_t, 256>& byte_ids)
      : VocabTokenizer(std::move(vocab), std::move(bytes), false),
        pre_(pre),
        merges_(std::move(merges)),
        byte_ids_(byte_ids) {
    if (!pre_.ignore_merges) return;
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if (!IsSpecial(id)) whole_words_.emplace(ToAbsl(TokenBytes(id)), id);
    }
  }

  Encoding EncodePieces(std::span<const TextPiece> pieces,
                        const EncodeOptions& options) const override {
    Scratch scratch;
    return EncodeBetweenSpecials(
        pieces, options,
        [&](std::string_view text, uint32_t begin, uint32_t end, bool /*first*/, CancelPoll& poll,
            Encoding& out) { EncodeText(text, begin, end, poll, scratch, out); });
  }

 private:
  struct Scratch {
    std::vector<uint32_t> word_ends;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    MappedText normal;
  };

  // A text that is encoded, and where in the input its bytes are.
  struct Part {
    std::string_view text;
    uint32_t begin = 0;                  // in the input
    const MappedText* mapped = nullptr;  // `text` is its text; null: the input's own

    ByteSpan Source(uint32_t from, uint32_t to) const {
      if (mapped == nullptr) return {begin + from, begin + to};
      return {mapped->SourceOf(from), mapped->SourceOf(to)};
    }
  };

  void EncodeText(std::string_view text, uint32_t begin, uint32_t end, CancelPoll& poll,
                  Scratch& scratch, Encoding& out) const {
    Part part{text.substr(begin, end - begin), begin};
    if (pre_.normal_form && MayNeedNormalForm(part.text)) {
      NormalForm(part.text, begin, poll, &scratch.normal);
      part = {scratch.normal.text(), begin, &scratch.normal};
    }
    scratch.word_ends.clear();
    SplitWords(pre_.rule, part.text, scratch.word_ends, &poll);
    uint32_t word_begin = 0;
    for (const uint32_t word_end : scratch.word_ends) {
      if (poll.Stop(word_end - word_begin)) return;
      EncodeWord(part, word_begin, word_end, poll, scratch, out);
      word_begin = word_end;
    }
  }

  void EncodeWord(const Part& part, uint32_t begin, uint32_t end, CancelPoll& poll,
                  Scratch& scratch, Encoding& out) const {
    const std::string_view word = part.text.substr(begin, end - begin);
    if (const auto whole = whole_words_.find(ToAbsl(word)); whole != whole_words_.end()) {
      Append(whole->second, part.Source(begin, end), out);
      return;
    }
    std::vector<Symbol>& symbols = scratch.symbols;
    symbols.clear();
    const auto count = static_cast<int32_t>(word.size());
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])];
      symbols.push_back({id, i - 1, i + 1 < count ? i + 1 : -1, begin + static_cast<uint32_t>(i)});
    }
    MergeSymbols(symbols, poll, scratch.heap);
    for (int32_t i = 0; i != -1; i = symbols[static_cast<size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<size_t>(i)];
      const uint32_t symbol_end =
          symbol.next == -1 ? end : symbols[static_cast<size_t>(symbol.next)].begin;
      // A byte without a token is dropped, as those that train such vocabularies do: their unknown
      // token is one for other purposes, often the end of text.
      if (symbol.id == kNoToken) {
        Drop(part.Source(symbol.begin, symbol_end), out);
      } else {
        Append(symbol.id, part.Source(symbol.begin, symbol_end), out);
      }
    }
  }

  void MergeSymbols(std::vector<Symbol>& symbols, CancelPoll& poll,
                    std::vector<Candidate>& heap) const {
    heap.clear();
    const auto symbol = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    const auto consider = [&](int32_t left) {
      if (left == -1 || symbol(left).next == -1) return;
      const int32_t left_id = symbol(left).id;
      const int32_t right_id = symbol(symbol(left).next).id;
      const auto found = merges_.find(PairKey(left_id, right_id));
      if (found == merges_.end()) return;
      heap.push_back({found->second.rank, left, left_id, right_id, found->second.id});
      std::push_heap(heap.begin(), heap.end());
    };
    for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) consider(i);
    while (!heap.empty() && !poll.Stop()) {
      std::pop_heap(heap.begin(), heap.end());
      const Candidate best = heap.back();
      heap.pop_back();
      Symbol& left = symbol(best.left);
      // Stale when either side has changed since.
      if (left.id != best.left_id || left.next == -1 || symbol(left.next).id != best.right_id)
        continue;
      Symbol& right = symbol(left.next);
      left.id = best.merged_id;
      left.next = right.next;
      right.id = kMergedAway;
      if (left.next != -1) symbol(left.next).previous = best.left;
      consider(left.previous);
      consider(best.left);
    }
  }

  PreTokenizerInfo pre_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<absl::string_view, int32_t>
      whole_words_;  // filled when merges are ignored for them
};

absl::Status MergeError(const GgufFile& file, size_t index, std::string_view merge,
                        const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": tokenizer.ggml.merges entry ", index, " (\"",
                   absl::CHexEscape(ToAbsl(merge.substr(0, 80))), "\") ", what));
}

absl::StatusOr<MergeTable> LoadMerges(const GgufFile& file, const Vocab& vocab) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string_view> lines,
                         file.GetStringArray("tokenizer.ggml.merges"));
  MergeTable merges;
  merges.reserve(lines.size());
  std::string merged_text;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) return MergeError(file, i, line, "is not two tokens");
    const std::string_view left_text = line.substr(0, space);
    const std::string_view right_text = line.substr(space + 1);
    merged_text.assign(left_text).append(right_text);
    const auto left = vocab.Find(left_text);
    const auto right = vocab.Find(right_text);
    const auto merged = vocab.Find(merged_text);
    if (!left || !right || !merged) {
      return MergeError(file, i, line, "names a token that the vocabulary lacks");
    }
    // Text never becomes a control token, nor a part of one.
    if (vocab.IsControl(*left) || vocab.IsControl(*right) || vocab.IsControl(*merged)) continue;
    merges.emplace(PairKey(*left, *right), Merge{static_cast<int32_t>(i), *merged});
  }
  return merges;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(const GgufFile& file,
                                                            std::string_view pre_tokenizer) {
  constexpr std::string_view kKey = "tokenizer.ggml.pre";
  WITHY_RETURN_IF_ERROR(file.GetStringOr(kKey, "").status());
  const std::string pre_name = ChoosePreTokenizer(file, pre_tokenizer).name;
  const absl::StatusOr<PreTokenizerInfo> pre = FindPreTokenizer(pre_name);
  if (!pre.ok()) {
    return Annotate(pre.status(), pre_tokenizer.empty()
                                      ? absl::StrCat(file.path(), ": metadata key \"", ToAbsl(kKey),
                                                     "\" (model.pre_tokenizer "
                                                     "names one in its place)")
                                      : "model.pre_tokenizer");
  }
  VocabDefaults defaults;
  defaults.add_bos = pre->add_bos;
  WITHY_ASSIGN_OR_RETURN(Vocab vocab, Vocab::Load(file, defaults));
  WITHY_ASSIGN_OR_RETURN(MergeTable merges, LoadMerges(file, vocab));

  const ByteAlphabet alphabet;
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = vocab.Find(alphabet.TextOf(static_cast<uint8_t>(byte))).value_or(kNoToken);
    byte_ids[static_cast<size_t>(byte)] = id != kNoToken && vocab.IsControl(id) ? kNoToken : id;
  }
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(vocab.size()));
  for (int32_t id = 0; id < vocab.size(); ++id) {
    const bool verbatim =
        vocab.kind(id) != TokenKind::kNormal && vocab.kind(id) != TokenKind::kUnused;
    bytes.push_back(verbatim ? std::string(vocab.text(id)) : alphabet.BytesOf(vocab.text(id)));
  }
  return std::make_unique<BpeTokenizer>(std::move(vocab), std::move(bytes), *pre, std::move(merges),
                                        byte_ids);
}

}  // namespace withy::engine

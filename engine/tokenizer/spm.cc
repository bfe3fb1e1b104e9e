#include "engine/tokenizer/spm.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {
namespace {

struct Options {
  bool add_space_prefix = true;
  bool strip_after_control = false;
};

struct MarkedSymbol {
  int32_t previous;
  int32_t next;           // -1 at the end
  uint32_t begin;         // in the marked text
  uint32_t bytes;         // 0 after merging into its left neighbour
  uint32_t source_begin;  // in the input
};

struct SymbolPair {
  float score;
  int32_t left;    // symbol index
  uint32_t bytes;  // of both sides together; detects that one has changed
  // Highest score first, then leftmost.
  bool operator<(const SymbolPair& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

class SpmTokenizer final : public VocabTokenizer {
 public:
  SpmTokenizer(Vocab vocab, std::vector<std::string> bytes, std::vector<float> scores,
               const std::array<int32_t, 256>& byte_ids, Options options)
      : VocabTokenizer(std::move(vocab), std::move(bytes), options.strip_after_control),
        options_(options),
        scores_(std::move(scores)),
        byte_ids_(byte_ids) {
    // Merging produces only ordinary tokens: text never becomes a control token or a byte's name.
    for (int32_t id = 0; id < vocab_size(); ++id) {
      const TokenKind kind = this->vocab().kind(id);
      if (kind != TokenKind::kNormal && kind != TokenKind::kUserDefined) continue;
      const std::string_view text = TokenText(id);
      mergeable_.emplace(ToAbsl(text), id);
      longest_ = std::max<uint32_t>(longest_, static_cast<uint32_t>(text.size()));
    }
    has_mark_bytes_ = true;
    for (const char c : kSpaceMark)
      has_mark_bytes_ &= byte_ids_[static_cast<uint8_t>(c)] != kNoToken;
  }

  bool adds_space_prefix() const override { return options_.add_space_prefix; }

  Encoding EncodePieces(std::span<const TextPiece> pieces,
                        const EncodeOptions& options) const override {
    Scratch scratch;
    return EncodeBetweenSpecials(pieces, options,
                                 [&](std::string_view text, uint32_t begin, uint32_t end,
                                     bool first, CancelPoll& poll, Encoding& out) {
                                   const bool prefix =
                                       options_.add_space_prefix && (!first || !options.continues);
                                   EncodeText(text, begin, end, prefix, poll, scratch, out);
                                 });
  }

 private:
  struct Scratch {
    std::string marked;  // the text with marked spaces
    std::vector<MarkedSymbol> symbols;
    std::vector<SymbolPair> heap;
  };

  void EncodeText(std::string_view text, uint32_t begin, uint32_t end, bool prefix,
                  CancelPoll& poll, Scratch& scratch, Encoding& out) const {
    if (begin == end) return;
    scratch.marked.clear();
    scratch.symbols.clear();
    if (prefix) AddSymbol(kSpaceMark, begin, scratch);
    for (uint32_t at = begin; at < end;) {
      if (poll.Stop()) return;
      // A mark that occurs in the text itself is kept distinct from spaces: it is encoded as bytes,
      // so that decoding restores it.
      if (has_mark_bytes_ && text.substr(at, end - at).starts_with(kSpaceMark)) {
        MergeSymbols(poll, scratch);
        EmitSymbols(scratch, at, out);
        for (const char c : kSpaceMark) {
          Append(byte_ids_[static_cast<uint8_t>(c)], {at, at + 1}, out);
          ++at;
        }
        scratch.marked.clear();
        scratch.symbols.clear();
        continue;
      }
      char32_t code = 0;
      const size_t length = std::max<size_t>(1, Utf8CharAt(text.substr(0, end), at, &code));
      AddSymbol(text[at] == ' ' ? kSpaceMark : text.substr(at, length), at, scratch);
      at += static_cast<uint32_t>(length);
    }
    MergeSymbols(poll, scratch);
    EmitSymbols(scratch, end, out);
  }

  static void AddSymbol(std::string_view bytes, uint32_t source_begin, Scratch& scratch) {
    const auto index = static_cast<int32_t>(scratch.symbols.size());
    if (index > 0) scratch.symbols.back().next = index;
    scratch.symbols.push_back({index - 1, -1, static_cast<uint32_t>(scratch.marked.size()),
                               static_cast<uint32_t>(bytes.size()), source_begin});
    scratch.marked.append(bytes);
  }

  void MergeSymbols(CancelPoll& poll, Scratch& scratch) const {
    std::vector<SymbolPair>& heap = scratch.heap;
    heap.clear();
    const auto symbol = [&](int32_t i) -> MarkedSymbol& {
      return scratch.symbols[static_cast<size_t>(i)];
    };
    const auto consider = [&](int32_t left) {
      if (left == -1 || symbol(left).next == -1) return;
      const uint32_t bytes = symbol(left).bytes + symbol(symbol(left).next).bytes;
      if (bytes > longest_) return;
      const auto found =
          mergeable_.find(absl::string_view(scratch.marked.data() + symbol(left).begin, bytes));
      if (found == mergeable_.end()) return;
      heap.push_back({scores_[static_cast<size_t>(found->second)], left, bytes});
      std::push_heap(heap.begin(), heap.end());
    };
    for (int32_t i = 0; i < static_cast<int32_t>(scratch.symbols.size()); ++i) consider(i);
    while (!heap.empty() && !poll.Stop()) {
      std::pop_heap(heap.begin(), heap.end());
      const SymbolPair best = heap.back();
      heap.pop_back();
      MarkedSymbol& left = symbol(best.left);
      if (left.bytes == 0 || left.next == -1) continue;
      MarkedSymbol& right = symbol(left.next);
      if (left.bytes + right.bytes != best.bytes) continue;  // stale
      left.bytes += right.bytes;
      right.bytes = 0;
      left.next = right.next;
      if (left.next != -1) symbol(left.next).previous = best.left;
      consider(left.previous);
      consider(best.left);
    }
  }

  void EmitSymbols(const Scratch& scratch, uint32_t source_end, Encoding& out) const {
    if (scratch.symbols.empty()) return;
    for (int32_t i = 0; i != -1; i = scratch.symbols[static_cast<size_t>(i)].next) {
      const MarkedSymbol& symbol = scratch.symbols[static_cast<size_t>(i)];
      const uint32_t end = symbol.next == -1
                               ? source_end
                               : scratch.symbols[static_cast<size_t>(symbol.next)].source_begin;
      const std::string_view text(scratch.marked.data() + symbol.begin, symbol.bytes);
      if (const auto found = mergeable_.find(ToAbsl(text)); found != mergeable_.end()) {
        Append(found->second, {symbol.source_begin, end}, out);
      } else {
        EmitBytes(text, {symbol.source_begin, end}, out);
      }
    }
  }

  // Emits a character without a token: its bytes, or if these are no tokens either, one unknown
  // token, or nothing if the vocabulary has none with only that meaning.
  void EmitBytes(std::string_view text, ByteSpan span, Encoding& out) const {
    const bool known = std::all_of(text.begin(), text.end(), [this](char c) {
      return byte_ids_[static_cast<uint8_t>(c)] != kNoToken;
    });
    if (!known) {
      if (vocab().unknown_in_text != kNoToken) {
        Append(vocab().unknown_in_text, span, out);
      } else {
        Drop(span, out);
      }
      return;
    }
    // A marked space is three bytes for one input byte; the last token takes the rest.
    uint32_t begin = span.begin;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t end = i + 1 == text.size() ? span.end : std::min(begin + 1, span.end);
      Append(byte_ids_[static_cast<uint8_t>(text[i])], {begin, end}, out);
      begin = end;
    }
  }

  Options options_;
  std::vector<float> scores_;
  std::array<int32_t, 256> byte_ids_;
  bool has_mark_bytes_ = false;
  absl::flat_hash_map<absl::string_view, int32_t> mergeable_;  // views into the vocabulary's texts
  uint32_t longest_ = 0;                                       // bytes of the longest of them
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(const GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(Vocab vocab,
                         Vocab::Load(file, {.bos = 1, .eos = 2, .unknown = 0, .add_bos = true}));
  WITHY_ASSIGN_OR_RETURN(std::vector<float> scores, ReadScores(file, vocab));
  Options options;
  WITHY_ASSIGN_OR_RETURN(options.add_space_prefix,
                         file.GetBoolOr("tokenizer.ggml.add_space_prefix", true));
  WITHY_ASSIGN_OR_RETURN(const std::string_view name, file.GetStringOr("general.name", ""));
  const std::string lower_name = absl::AsciiStrToLower(ToAbsl(name));
  // Phi-3's vocabulary includes white space after its turn markers; otherwise files do not specify
  // it.
  options.strip_after_control =
      absl::StrContains(lower_name, "phi-3") || absl::StrContains(lower_name, "phi3");

  std::array<int32_t, 256> byte_ids;
  std::vector<std::string> bytes = BytesOfMarkedTokens(vocab, &byte_ids);
  return std::make_unique<SpmTokenizer>(std::move(vocab), std::move(bytes), std::move(scores),
                                        byte_ids, options);
}

}  // namespace withy::engine

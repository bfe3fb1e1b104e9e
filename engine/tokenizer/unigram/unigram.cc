#include "engine/tokenizer/unigram/unigram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/tokenizer/mapped_text.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/unigram/charsmap.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD, for a byte that is not UTF-8
constexpr double kUnknownPenalty = 10;  // below the lowest score, as in SentencePiece
// Longer tokens are never found, so that a text of n bytes takes at most n times as many steps.
constexpr size_t kMostTokenBytes = 256;

// The texts of tokens, by their beginnings. Immutable.
class TokenTrie {
 public:
  // Of equal texts the first counts.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto last = std::unique(tokens.begin(), tokens.end(),
                                  [](const auto& a, const auto& b) { return a.first == b.first; });
    tokens.erase(last, tokens.end());
    // A node for each beginning of `depth` bytes: the tokens [begin, end) have it.
    struct Range {
      size_t begin;
      size_t end;
      size_t depth;
    };
    std::vector<Range> ranges = {{0, tokens.size(), 0}};
    nodes_.emplace_back();
    for (size_t at = 0; at < ranges.size(); ++at) {
      auto [begin, end, depth] = ranges[at];
      if (begin < end && tokens[begin].first.size() == depth)
        nodes_[at].token = tokens[begin++].second;
      nodes_[at].first_child = static_cast<uint32_t>(nodes_.size());
      while (begin < end) {
        const char label = tokens[begin].first[depth];
        size_t next = begin;
        while (next < end && tokens[next].first[depth] == label) ++next;
        ranges.push_back({begin, next, depth + 1});
        nodes_.push_back({.label = static_cast<uint8_t>(label)});
        begin = next;
      }
      nodes_[at].children = static_cast<uint16_t>(nodes_.size() - nodes_[at].first_child);
    }
  }

  // Calls fn(bytes, token) for each token that `text` begins with, the shortest first.
  template <typename Fn>
  void ForTokensAt(std::string_view text, Fn fn) const {
    const Node* node = nodes_.data();
    for (size_t at = 0; at < text.size(); ++at) {
      const auto label = static_cast<uint8_t>(text[at]);
      const Node* const first = nodes_.data() + node->first_child;
      const Node* const end = first + node->children;
      node = std::lower_bound(first, end, label, [](const Node& child, uint8_t wanted) {
        return child.label < wanted;
      });
      if (node == end || node->label != label) return;
      if (node->token != kNoToken) fn(at + 1, node->token);
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;  // children follow each other, by ascending label
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t token = kNoToken;
  };

  std::vector<Node> nodes_;
};

struct UnigramOptions {
  bool add_space_prefix = false;
  bool remove_extra_spaces = false;
};

class UnigramTokenizer final : public VocabTokenizer {
 public:
  UnigramTokenizer(Vocab vocab, std::vector<std::string> bytes, std::vector<float> scores,
                   const std::array<int32_t, 256>& byte_ids, Charsmap charsmap,
                   UnigramOptions options)
      : VocabTokenizer(std::move(vocab), std::move(bytes), false),
        options_(options),
        charsmap_(std::move(charsmap)),
        scores_(std::move(scores)),
        byte_ids_(byte_ids),
        trie_(OrdinaryTokens()) {
    double lowest = std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if (this->vocab().kind(id) == TokenKind::kNormal) lowest = std::min(lowest, ScoreOf(id));
    }
    unknown_score_ = (vocab_size() > 0 && lowest < 1e30 ? lowest : 0.0) - kUnknownPenalty;
  }

  bool adds_space_prefix() const override { return options_.add_space_prefix; }

  Encoding EncodePieces(std::span<const TextPiece> pieces,
                        const EncodeOptions& options) const override {
    Scratch scratch;
    return EncodeBetweenSpecials(pieces, options,
                                 [&](std::string_view text, uint32_t begin, uint32_t end,
                                     bool first, CancelPoll& poll, Encoding& out) {
                                   const bool starts = !first || !options.continues;
                                   EncodeText(text, begin, end, starts, poll, scratch, out);
                                 });
  }

 private:
  // The best tokens of the text up to a byte.
  struct Best {
    double score = 0.0;
    uint32_t begin = kNowhere;  // of the last one
    int32_t token = kNoToken;   // kNoToken: a character without a token
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;

  struct Scratch {
    MappedText text;
    std::vector<Best> best;                       // by end
    std::vector<std::pair<uint32_t, Best>> path;  // ends and tokens, the last first
  };

  std::vector<std::pair<std::string_view, int32_t>> OrdinaryTokens() const {
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    for (int32_t id = 0; id < vocab_size(); ++id) {
      const std::string_view text = TokenText(id);
      if (vocab().kind(id) != TokenKind::kNormal) continue;
      if (!text.empty() && text.size() <= kMostTokenBytes) tokens.emplace_back(text, id);
    }
    return tokens;
  }

  double ScoreOf(int32_t id) const { return static_cast<double>(scores_[static_cast<size_t>(id)]); }

  // `starts`: nothing precedes the text, so that white space at its begin means nothing.
  void EncodeText(std::string_view text, uint32_t begin, uint32_t end, bool starts,
                  CancelPoll& poll, Scratch& scratch, Encoding& out) const {
    if (begin == end) return;
    Normalise(text.substr(begin, end - begin), begin, starts, poll, &scratch.text);
    if (poll.stopped()) return;
    if (scratch.text.text().empty()) {
      Drop({begin, end}, out);
      return;
    }
    FindBest(poll, scratch);
    if (poll.stopped()) return;
    Emit(scratch, out);
  }

  // Applies the charsmap, and writes spaces as tokens do.
  void Normalise(std::string_view text, uint32_t begin, bool starts, CancelPoll& poll,
                 MappedText* out) const {
    out->Clear();
    bool after_space = options_.remove_extra_spaces && starts;
    bool prefix = options_.add_space_prefix && starts;
    ByteSpan pending;  // spaces that something must follow, or they are removed
    std::string changed;
    for (size_t at = 0; at < text.size() && !poll.Stop();) {
      const size_t bytes = Changed(text.substr(at), &changed);
      const auto from = begin + static_cast<uint32_t>(at);
      const ByteSpan source = {from, from + static_cast<uint32_t>(bytes)};
      const std::string_view same = text.substr(at, bytes);
      at += bytes;
      std::string_view rest = changed;
      while (after_space && rest.starts_with(' ')) rest.remove_prefix(1);
      if (rest.empty()) {
        if (pending.end > pending.begin) {
          pending.end = source.end;
        } else {
          out->Replace("", source);
        }
        continue;
      }
      if (prefix) out->Replace(kSpaceMark, {source.begin, source.begin});
      prefix = false;
      if (pending.end > pending.begin) out->Replace(kSpaceMark, pending);
      pending = {};
      after_space = options_.remove_extra_spaces && rest.ends_with(' ');
      if (rest == " " && after_space) {
        pending = source;
      } else if (rest == " ") {
        out->Replace(kSpaceMark, source);
      } else if (rest == same) {
        out->Keep(rest, source.begin);
      } else {
        out->Replace(WithMarks(rest), source);
      }
    }
    if (pending.end > pending.begin) out->Replace("", pending);
  }

  static std::string WithMarks(std::string_view text) {
    return absl::StrReplaceAll(ToAbsl(text), {{" ", ToAbsl(kSpaceMark)}});
  }

  // Writes what becomes of the first rule's bytes or character of `text`; returns how many bytes
  // those are.
  size_t Changed(std::string_view text, std::string* changed) const {
    const Charsmap::Rule rule = charsmap_.Find(text);
    if (rule.bytes > 0) {
      changed->assign(rule.replacement);
      return rule.bytes;
    }
    char32_t code = 0;
    const size_t length = Utf8CharAt(text, 0, &code);
    changed->assign(length == 0 ? kReplacement : text.substr(0, length));
    return std::max<size_t>(1, length);
  }

  // Of equal sums the one whose last token is longest counts, as in SentencePiece.
  void FindBest(CancelPoll& poll, Scratch& scratch) const {
    const std::string_view text = scratch.text.text();
    scratch.best.assign(text.size() + 1, Best());
    for (size_t at = 0; at < text.size() && !poll.Stop();) {
      const double before = scratch.best[at].score;
      char32_t code = 0;
      const size_t one = std::max<size_t>(1, Utf8CharAt(text, at, &code));
      const auto offer = [&](size_t bytes, double score, int32_t token) {
        Best& best = scratch.best[at + bytes];
        if (best.begin != kNowhere && before + score <= best.score) return;
        best = {before + score, static_cast<uint32_t>(at), token};
      };
      bool known = false;
      trie_.ForTokensAt(text.substr(at), [&](size_t bytes, int32_t token) {
        known |= bytes == one;
        if (bytes >= one) offer(bytes, ScoreOf(token), token);
      });
      if (!known) offer(one, unknown_score_, kNoToken);
      at += one;
    }
  }

  void Emit(Scratch& scratch, Encoding& out) const {
    scratch.path.clear();
    for (auto end = static_cast<uint32_t>(scratch.text.text().size()); end > 0;) {
      const Best& best = scratch.best[end];
      scratch.path.emplace_back(end, best);
      end = best.begin;
    }
    for (size_t i = scratch.path.size(); i > 0;) {
      const auto& [end, best] = scratch.path[--i];
      if (best.token != kNoToken) {
        Append(best.token, SourceOf(scratch, best.begin, end), out);
      } else {
        EmitUnknown(scratch, &i, out);
      }
    }
  }

  static ByteSpan SourceOf(const Scratch& scratch, uint32_t begin, uint32_t end) {
    return {scratch.text.SourceOf(begin), scratch.text.SourceOf(end)};
  }

  // Emits a run of characters without a token, from `*at` of the path on: their bytes, or one
  // unknown token, or nothing if the vocabulary has none with only that meaning.
  void EmitUnknown(const Scratch& scratch, size_t* at, Encoding& out) const {
    const uint32_t begin = scratch.path[*at].second.begin;
    while (*at > 0 && scratch.path[*at - 1].second.token == kNoToken) --*at;
    const uint32_t end = scratch.path[*at].first;
    if (has_bytes()) {
      for (uint32_t byte = begin; byte < end; ++byte) {
        const auto value = static_cast<uint8_t>(scratch.text.text()[byte]);
        Append(byte_ids_[value], SourceOf(scratch, byte, byte + 1), out);
      }
    } else if (vocab().unknown_in_text != kNoToken) {
      Append(vocab().unknown_in_text, SourceOf(scratch, begin, end), out);
    } else {
      Drop(SourceOf(scratch, begin, end), out);
    }
  }

  bool has_bytes() const {
    return std::find(byte_ids_.begin(), byte_ids_.end(), kNoToken) == byte_ids_.end();
  }

  const UnigramOptions options_;
  const Charsmap charsmap_;
  const std::vector<float> scores_;
  const std::array<int32_t, 256> byte_ids_;
  const TokenTrie trie_;
  double unknown_score_ = 0.0;
};

absl::StatusOr<Charsmap> ReadCharsmap(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.precompiled_charsmap";
  if (!file.Has(kKey)) return Charsmap();
  const auto annotated = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": metadata key \"", ToAbsl(kKey), "\" ", what));
  };
  WITHY_ASSIGN_OR_RETURN(const uint64_t count, file.GetArrayCount(kKey));
  if (count > Charsmap::kMaxBytes) {
    return annotated(
        absl::StrCat("has ", count, " bytes, at most ", Charsmap::kMaxBytes, " can be read"));
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> values, file.GetIntArray(kKey));
  std::vector<uint8_t> bytes;
  bytes.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < INT8_MIN || values[i] > UINT8_MAX) {
      return annotated(absl::StrCat("entry ", i, " is ", values[i], ", no byte"));
    }
    bytes.push_back(static_cast<uint8_t>(values[i]));
  }
  absl::StatusOr<Charsmap> charsmap = Charsmap::Parse(std::move(bytes));
  if (charsmap.ok()) return charsmap;
  return annotated(std::string(charsmap.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeUnigramTokenizer(const GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(Vocab vocab, Vocab::Load(file, {.eos = 1, .unknown = 2}));
  WITHY_ASSIGN_OR_RETURN(std::vector<float> scores, ReadScores(file, vocab));
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(scores[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tokenizer.ggml.scores entry ", i, " is not finite"));
  }
  WITHY_ASSIGN_OR_RETURN(Charsmap charsmap, ReadCharsmap(file));
  UnigramOptions options;
  WITHY_ASSIGN_OR_RETURN(options.add_space_prefix,
                         file.GetBoolOr("tokenizer.ggml.add_space_prefix", false));
  WITHY_ASSIGN_OR_RETURN(options.remove_extra_spaces,
                         file.GetBoolOr("tokenizer.ggml.remove_extra_whitespaces", false));
  std::array<int32_t, 256> byte_ids;
  std::vector<std::string> bytes = BytesOfMarkedTokens(vocab, &byte_ids);
  return std::make_unique<UnigramTokenizer>(std::move(vocab), std::move(bytes), std::move(scores),
                                            byte_ids, std::move(charsmap), options);
}

}  // namespace withy::engine

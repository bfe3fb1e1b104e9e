#include "elasticizer/vocab/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <set>

namespace withy::vocab {
namespace {

using Pair = std::pair<int32_t, int32_t>;

bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) > 127;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNewline(char c) { return c == '\n' || c == '\r'; }
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || IsNewline(c); }
bool IsSign(char c) { return !IsLetter(c) && !IsDigit(c) && !IsBlank(c); }

// Bytes of an English contraction ('s, 're, ...) at `i`, or 0.
size_t ContractionBytes(std::string_view text, size_t i) {
  if (text[i] != '\'') return 0;
  std::string tail(text.substr(i + 1, 2));
  for (char& c : tail) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const std::string_view two : {"re", "ve", "ll"}) {
    if (tail == two) return 3;
  }
  return !tail.empty() && std::string_view("stmd").find(tail[0]) != std::string_view::npos ? 2 : 0;
}

// End of the run of blanks at `i`: up to its last newline, or all but the blank that belongs to the
// next word.
size_t BlankEnd(std::string_view text, size_t i) {
  size_t end = i;
  size_t after_newline = i;
  for (; end < text.size() && IsBlank(text[end]); ++end) {
    if (IsNewline(text[end])) after_newline = end + 1;
  }
  if (after_newline > i) return after_newline;
  return end < text.size() && end - i > 1 ? end - 1 : end;
}

size_t WordEnd(std::string_view text, size_t i) {
  if (const size_t bytes = ContractionBytes(text, i); bytes > 0) return i + bytes;
  const bool joins = !IsNewline(text[i]) && !IsDigit(text[i]) && !IsLetter(text[i]) &&
                     i + 1 < text.size() && IsLetter(text[i + 1]);
  if (joins || IsLetter(text[i])) {
    size_t end = i + 1;
    while (end < text.size() && IsLetter(text[end])) ++end;
    return end;
  }
  if (IsDigit(text[i])) return i + 1;
  const size_t sign = text[i] == ' ' ? i + 1 : i;
  if (sign < text.size() && IsSign(text[sign])) {
    size_t end = sign;
    while (end < text.size() && IsSign(text[end])) ++end;
    while (end < text.size() && IsNewline(text[end])) ++end;
    return end;
  }
  return BlankEnd(text, i);
}

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

// Pair counts over all words, kept up to date as pairs are merged.
class PairTable {
 public:
  explicit PairTable(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (size_t i = 0; i + 1 < words_[w].ids.size(); ++i)
        Change({words_[w].ids[i], words_[w].ids[i + 1]}, w, words_[w].count);
    }
  }

  // The most frequent pair; count 0 when there is none.
  std::pair<Pair, int64_t> Best() const {
    if (order_.empty()) return {{0, 0}, 0};
    return {order_.begin()->second, -order_.begin()->first};
  }

  void Merge(const Pair& pair, int32_t id) {
    const std::set<size_t> where = std::move(entries_[pair].words);
    for (const size_t w : where) MergeInWord(w, pair, id);
  }

 private:
  struct Entry {
    int64_t count = 0;
    std::set<size_t> words;  // may hold words that lost the pair; they are skipped then
  };

  void Change(const Pair& pair, size_t word, int64_t by) {
    Entry& entry = entries_[pair];
    if (entry.count > 0) order_.erase({-entry.count, pair});
    entry.count += by;
    if (entry.count > 0) order_.insert({-entry.count, pair});
    if (by > 0) entry.words.insert(word);
  }

  void MergeInWord(size_t w, const Pair& pair, int32_t id) {
    Word& word = words_[w];
    std::vector<int32_t> merged;
    for (size_t i = 0; i < word.ids.size(); ++i) {
      const bool match =
          i + 1 < word.ids.size() && word.ids[i] == pair.first && word.ids[i + 1] == pair.second;
      merged.push_back(match ? id : word.ids[i]);
      if (match) ++i;
    }
    if (merged.size() == word.ids.size()) return;
    for (size_t i = 0; i + 1 < word.ids.size(); ++i)
      Change({word.ids[i], word.ids[i + 1]}, w, -word.count);
    for (size_t i = 0; i + 1 < merged.size(); ++i)
      Change({merged[i], merged[i + 1]}, w, word.count);
    word.ids = std::move(merged);
  }

  std::vector<Word> words_;
  std::map<Pair, Entry> entries_;
  std::set<std::pair<int64_t, Pair>> order_;  // by falling count, then by ids
};

}  // namespace

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t i = 0; i < text.size();) {
    const size_t end = WordEnd(text, i);
    words.push_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

void BpeTrainer::Add(std::string_view text) {
  for (const std::string_view word : SplitWords(text)) ++words_[std::string(word)];
}

BpeVocabulary BpeTrainer::Learn(std::vector<std::string> specials, int32_t vocab_size,
                                int64_t min_count) const {
  BpeVocabulary vocabulary;
  vocabulary.specials = std::move(specials);
  vocabulary.pieces = vocabulary.specials;
  for (int byte = 0; byte < 256; ++byte) vocabulary.pieces.emplace_back(1, static_cast<char>(byte));

  const std::map<std::string, int64_t> sorted(words_.begin(), words_.end());
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    Word word{{}, count};
    for (const char c : text) word.ids.push_back(vocabulary.ByteId(static_cast<uint8_t>(c)));
    words.push_back(std::move(word));
  }
  PairTable table(std::move(words));
  while (vocabulary.size() < vocab_size) {
    const auto [pair, count] = table.Best();
    if (count < min_count || count == 0) break;
    vocabulary.merges.push_back(pair);
    vocabulary.pieces.push_back(vocabulary.pieces[static_cast<size_t>(pair.first)] +
                                vocabulary.pieces[static_cast<size_t>(pair.second)]);
    table.Merge(pair, vocabulary.size() - 1);
  }
  return vocabulary;
}

}  // namespace withy::vocab

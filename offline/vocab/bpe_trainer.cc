#include "offline/vocab/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/tokenizer/split.h"

namespace withy::vocab {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

// Pair counts over all words, updated as pairs are merged.
class PairTable {
 public:
  explicit PairTable(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (size_t i = 0; i + 1 < words_[w].ids.size(); ++i)
        Change({words_[w].ids[i], words_[w].ids[i + 1]}, w, words_[w].count);
    }
  }

  // The most frequent pair; count 0 if there is none.
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
    std::set<size_t> words;  // may include words that lost the pair; they are skipped
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

void BpeTrainer::Add(std::string_view text) {
  std::vector<uint32_t> ends;
  engine::SplitWords(engine::PreTokenizer::kQwen2, text, ends);
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    ++words_[std::string(text.substr(begin, end - begin))];
    begin = end;
  }
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

#include "offline/tlm/wordpiece_learner.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "offline/corpus/generator.h"

namespace withy::tlm {
namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";  // precedes the first piece of a word
constexpr int32_t kPocketVocab = 2000;

// ASCII characters that normalised words may contain.
std::string Alphabet() {
  std::string alphabet;
  for (char c = '!'; c <= '~'; ++c) {
    if (c < 'A' || c > 'Z') alphabet.push_back(c);
  }
  return alphabet;
}

std::string SpecialLines() { return "[PAD]\n[UNK]\n[CLS]\n[SEP]\n"; }

std::string CharacterLines() {
  std::string lines;
  for (const char c : Alphabet()) lines += std::string(1, c) + "\n##" + c + "\n";
  return lines;
}

struct Word {
  std::vector<int32_t> pieces;
  int64_t count = 0;
};

// The most frequent pair of neighbours, ties to smaller ids; count 0: none.
std::pair<uint64_t, int64_t> BestPair(const std::vector<Word>& words) {
  std::unordered_map<uint64_t, int64_t> counts;
  for (const Word& word : words) {
    for (size_t i = 0; i + 1 < word.pieces.size(); ++i) {
      counts[static_cast<uint64_t>(word.pieces[i]) << 32 |
             static_cast<uint32_t>(word.pieces[i + 1])] += word.count;
    }
  }
  std::pair<uint64_t, int64_t> best{0, 0};
  for (const auto& [pair, count] : counts) {
    if (count > best.second || (count == best.second && pair < best.first)) best = {pair, count};
  }
  return best;
}

void Join(uint64_t pair, int32_t id, std::vector<Word>* words) {
  for (Word& word : *words) {
    size_t to = 0;
    for (size_t i = 0; i < word.pieces.size(); ++i, ++to) {
      const bool match =
          i + 1 < word.pieces.size() && (static_cast<uint64_t>(word.pieces[i]) << 32 |
                                         static_cast<uint32_t>(word.pieces[i + 1])) == pair;
      word.pieces[to] = match ? id : word.pieces[i];
      if (match) ++i;
    }
    word.pieces.resize(to);
  }
}

}  // namespace

absl::StatusOr<WordPieceLearner> WordPieceLearner::Create(const std::string& directory) {
  WITHY_ASSIGN_OR_RETURN(const engine::WordPieceVocab vocab,
                         engine::ParseVocab(SpecialLines() + CharacterLines(), "characters"));
  engine::GgufWriter writer;
  writer.SetString("general.architecture", "mobilebert");
  engine::WriteVocab(vocab, &writer);
  const std::string path = directory + "/characters.gguf";
  WITHY_RETURN_IF_ERROR(writer.Write(path));
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Tokenizer> tokenizer, engine::MakeTokenizer(file));
  return WordPieceLearner(std::move(tokenizer));
}

void WordPieceLearner::Add(std::string_view text) {
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) ++words_[word];
    word.clear();
  };
  for (const int32_t id : characters_->Encode(text)) {
    if (id < 4) {  // a special token: a word with unknown characters
      finish();
      continue;
    }
    const std::string_view piece = characters_->TokenText(id);
    if (piece.starts_with(kMark)) {
      finish();
      word = piece.substr(kMark.size());
    } else {
      word += piece;
    }
  }
  finish();
}

absl::StatusOr<engine::WordPieceVocab> WordPieceLearner::Learn(int32_t size,
                                                               int32_t slo_steps) const {
  const std::string alphabet = Alphabet();
  std::vector<std::string> pieces;  // in vocab.txt format
  std::unordered_map<std::string, int32_t> ids;
  const auto add = [&](const std::string& piece) {
    const auto [at, added] = ids.emplace(piece, static_cast<int32_t>(pieces.size()));
    if (added) pieces.push_back(piece);
    return at->second;
  };
  for (const char c : alphabet) {
    add(std::string(1, c));
    add(std::string("##") + c);
  }
  std::vector<Word> words;
  for (const auto& [text, count] : words_) {
    Word& word = words.emplace_back();
    word.count = count;
    for (size_t i = 0; i < text.size(); ++i) {
      word.pieces.push_back(add(i == 0 ? text.substr(0, 1) : "##" + text.substr(i, 1)));
    }
  }
  const auto wanted = static_cast<size_t>(size - 4 - 2 * slo_steps);
  while (pieces.size() < wanted) {
    const auto [pair, count] = BestPair(words);
    if (count < 2) break;
    const std::string& left = pieces[static_cast<size_t>(pair >> 32)];
    const std::string joined =
        left + pieces[static_cast<size_t>(pair & 0xFFFFFFFFu)].substr(2);  // always a "##" piece
    Join(pair, add(joined), &words);
  }
  std::string lines = SpecialLines();
  for (const std::string& piece : pieces) lines += piece + "\n";
  WITHY_ASSIGN_OR_RETURN(engine::WordPieceVocab vocab, engine::ParseVocab(lines, "word pieces"));
  engine::AddSloTokens(slo_steps, &vocab);
  return vocab;
}

absl::StatusOr<engine::WordPieceVocab> LearnPocketVocab(const std::string& directory,
                                                        int64_t records, int32_t slo_steps) {
  WITHY_ASSIGN_OR_RETURN(WordPieceLearner learner, WordPieceLearner::Create(directory));
  const corpus::Generator generator(corpus::TrainSpec());
  for (int64_t i = 0; i < records; ++i) {
    for (const corpus::Message& message : generator.At(static_cast<uint64_t>(i)).messages)
      learner.Add(message.content);
  }
  return learner.Learn(kPocketVocab, slo_steps);
}

absl::StatusOr<engine::WordPieceVocab> LearnVocabOf(std::span<const corpus::Record> records,
                                                    const std::string& directory,
                                                    int32_t slo_steps) {
  WITHY_ASSIGN_OR_RETURN(WordPieceLearner learner, WordPieceLearner::Create(directory));
  for (const corpus::Record& record : records) {
    for (const corpus::Message& message : record.messages) learner.Add(message.content);
  }
  return learner.Learn(kPocketVocab, slo_steps);
}

engine::TlmShape PocketTlmShape(int32_t vocab_size, std::vector<int32_t> model_levels,
                                const TlmSize& size) {
  engine::TlmShape shape;
  shape.encoder = {.vocab = vocab_size,
                   .embedding = 128,
                   .hidden = size.width,
                   .bottleneck = size.width,
                   .ffn = 4 * size.width,
                   .ffn_count = 1,
                   .heads = size.width / 32,
                   .positions = 512,
                   .token_types = 1,
                   .trigram = true,
                   .use_bottleneck = false,
                   .bottleneck_attention = false,
                   .shared_qk = false,
                   .norm = engine::EncoderNorm::kLayerNorm,
                   .epsilon = engine::kDefaultNormEpsilon};
  shape.shared_layers = size.shared_layers;
  shape.score_layers = std::max(0, 3 - size.shared_layers);
  shape.decision_layers = 4 - size.shared_layers;
  shape.window = 512;
  shape.prompt_levels = engine::DefaultLevels();
  shape.model_levels = std::move(model_levels);
  return shape;
}

}  // namespace withy::tlm

// The rules are published as regular expressions. Here each alternative is matched by hand in the
// same order, so that splitting is linear.
#include "engine/tokenizer/split.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace withy::engine {
namespace {

using Chars = std::span<const Char>;  // the piece being split; nothing outside it is visible

bool Is(const Char& c, int classes) { return (c.classes & classes) != 0; }
bool IsAt(Chars chars, size_t at, int classes) {
  return at < chars.size() && Is(chars[at], classes);
}
bool IsNewline(const Char& c) { return c.code == '\r' || c.code == '\n'; }

template <typename Predicate>
size_t SkipWhile(Chars chars, size_t at, Predicate predicate) {
  while (at < chars.size() && predicate(chars[at])) ++at;
  return at;
}

size_t SkipClass(Chars chars, size_t at, int classes) {
  return SkipWhile(chars, at, [=](const Char& c) { return Is(c, classes); });
}

bool IsOther(const Char& c) { return !Is(c, kCharSpace | kCharLetter | kCharNumber); }
// The same where marks belong to letters.
bool IsOtherThanMark(const Char& c) { return IsOther(c) && !Is(c, kCharMark); }

// End of 's 't 're 've 'm 'll 'd at `at`, or `at`.
size_t MatchContraction(Chars chars, size_t at, bool any_case) {
  if (at + 1 >= chars.size() || chars[at].code != '\'') return at;
  const auto letter = [&](size_t i) -> char32_t {
    if (i >= chars.size()) return 0;
    const char32_t code = chars[i].code;
    return any_case && code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code;
  };
  const char32_t first = letter(at + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  const char32_t second = letter(at + 2);
  const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                   (first == 'l' && second == 'l');
  return two ? at + 3 : at;
}

// \s+(?!\S)|\s+ : a run of white space leaves its last character to the next word.
size_t MatchSpaces(Chars chars, size_t at) {
  const size_t end = SkipClass(chars, at, kCharSpace);
  return end < chars.size() && end - at > 1 ? end - 1 : end;
}

// \s*[\r\n]+ : white space up to its last line break, or `at` if it has none.
size_t MatchLineBreaks(Chars chars, size_t at) {
  size_t end = SkipClass(chars, at, kCharSpace);
  while (end > at && !IsNewline(chars[end - 1])) --end;
  return end;
}

size_t MatchGpt2(Chars chars, size_t at) {
  if (const size_t end = MatchContraction(chars, at, false); end > at) return end;
  const size_t word = at + (chars[at].code == ' ' ? 1 : 0);
  if (IsAt(chars, word, kCharLetter)) return SkipClass(chars, word, kCharLetter);
  if (IsAt(chars, word, kCharNumber)) return SkipClass(chars, word, kCharNumber);
  if (word < chars.size() && IsOther(chars[word])) return SkipWhile(chars, word, IsOther);
  return MatchSpaces(chars, at);
}

// At most `limit` numbers. The rest of the run is left to the next match.
size_t MatchNumbers(Chars chars, size_t at, size_t limit) {
  return SkipClass(chars.first(std::min(chars.size(), at + limit)), at, kCharNumber);
}

// What differs between rules that take one leading character and letters, numbers, other signs, and
// white space.
struct Variant {
  size_t numbers = 1;        // at most so many make a word
  bool contractions = true;  // before or, of cased words, after letters
  bool marks = false;        // belong to letters
  bool line_breaks = true;   // end a run of other signs
  bool slashes = false;      // do so, too
};

//  ?[^\s\p{L}\p{N}]+[\r\n]*, or `at`.
size_t MatchOthers(Chars chars, size_t at, const Variant& v) {
  const auto is_other = v.marks ? IsOtherThanMark : IsOther;
  const size_t word = at + (chars[at].code == ' ' ? 1 : 0);
  if (word >= chars.size() || !is_other(chars[word])) return at;
  return SkipWhile(chars, SkipWhile(chars, word, is_other), [&](const Char& c) {
    return (v.line_breaks && IsNewline(c)) || (v.slashes && c.code == '/');
  });
}

// The alternatives from punctuation on, with which most rules end.
size_t MatchOthersAndSpaces(Chars chars, size_t at, const Variant& v) {
  if (const size_t end = MatchOthers(chars, at, v); end > at) return end;
  if (const size_t end = MatchLineBreaks(chars, at); end > at) return end;
  if (const size_t end = MatchSpaces(chars, at); end > at) return end;
  return at + 1;
}

// Start of letters that may follow one character other than a line break, letter or number;
// chars.size() if there are none.
size_t LettersBegin(Chars chars, size_t at, int letters) {
  const bool prefix = !IsNewline(chars[at]) && !Is(chars[at], kCharLetter | kCharNumber);
  if (prefix && IsAt(chars, at + 1, letters)) return at + 1;
  return Is(chars[at], letters) ? at : chars.size();
}

size_t MatchLlama3(Chars chars, size_t at, const Variant& v) {
  const int letters = kCharLetter | (v.marks ? kCharMark : 0);
  if (v.contractions) {
    if (const size_t end = MatchContraction(chars, at, true); end > at) return end;
  }
  if (const size_t word = LettersBegin(chars, at, letters); word < chars.size()) {
    return SkipClass(chars, word, letters);
  }
  if (Is(chars[at], kCharNumber)) return MatchNumbers(chars, at, v.numbers);
  return MatchOthersAndSpaces(chars, at, v);
}

// Upper-case letters, then lower-case ones (caseless letters and marks count as both):
// [upper]*[lower]+, else [upper]+[lower]*.
size_t MatchCasedWord(Chars chars, size_t at) {
  constexpr int kUpperSide = kCharUpper | kCharCaseless | kCharMark;
  constexpr int kLowerSide = kCharLower | kCharCaseless | kCharMark;
  const size_t upper_end = SkipClass(chars, at, kUpperSide);
  const size_t lower_end = SkipClass(chars, upper_end, kLowerSide);
  if (lower_end > upper_end) return lower_end;
  // No lower-case letter follows: the first form may still backtrack to a caseless one.
  for (size_t end = upper_end; end > at; --end) {
    if (Is(chars[end - 1], kLowerSide)) return end;
  }
  return upper_end;
}

size_t MatchTekken(Chars chars, size_t at, const Variant& v) {
  constexpr int kWord = kCharLetter | kCharMark;
  if (const size_t word = LettersBegin(chars, at, kWord); word < chars.size()) {
    const size_t end = MatchCasedWord(chars, word);
    return v.contractions ? MatchContraction(chars, end, true) : end;
  }
  if (Is(chars[at], kCharNumber)) return MatchNumbers(chars, at, v.numbers);
  return MatchOthersAndSpaces(chars, at, v);
}

bool IsAsciiLetter(const Char& c) {
  return (c.code >= 'A' && c.code <= 'Z') || (c.code >= 'a' && c.code <= 'z');
}

// Returns `at` if nothing matches (numbers, control characters).
size_t MatchDeepSeek3(Chars chars, size_t at) {
  const Char& first = chars[at];
  if (first.code < 0x80 && Is(first, kCharPunct | kCharSymbol) && at + 1 < chars.size() &&
      IsAsciiLetter(chars[at + 1])) {
    return SkipWhile(chars, at + 1, IsAsciiLetter);
  }
  constexpr int kWord = kCharLetter | kCharMark;
  const bool prefix = !IsNewline(first) && !Is(first, kCharLetter | kCharPunct | kCharSymbol);
  if (prefix && IsAt(chars, at + 1, kWord)) return SkipClass(chars, at + 1, kWord);
  if (Is(first, kWord)) return SkipClass(chars, at, kWord);
  constexpr int kSigns = kCharPunct | kCharSymbol;
  const size_t signs = at + (first.code == ' ' ? 1 : 0);
  if (IsAt(chars, signs, kSigns)) {
    return SkipWhile(chars, SkipClass(chars, signs, kSigns), IsNewline);
  }
  if (const size_t end = MatchLineBreaks(chars, at); end > at) return end;
  return MatchSpaces(chars, at);
}

// Splits pieces in passes; each pass sees only the pieces of the previous one.
class Pieces {
 public:
  Pieces(Chars chars, CancelPoll& poll) : chars_(chars), poll_(poll), ends_{chars.size()} {}

  // `match(piece, at)` returns the end (> at) of the word that begins at `at`.
  template <typename Match>
  void CutWords(Match match) {
    Pass([&](Chars piece, size_t base) {
      for (size_t at = 0; at < piece.size();) {
        const size_t end = poll_.stopped() ? piece.size() : match(piece, at);
        poll_.Stop(end - at);
        next_.push_back(base + end);
        at = end;
      }
    });
  }

  // `match` may also return `at`: no match there. Text between matches stays together.
  template <typename Match>
  void Isolate(Match match) {
    Pass([&](Chars piece, size_t base) {
      size_t done = 0;
      for (size_t at = 0; at < piece.size() && !poll_.stopped();) {
        const size_t end = match(piece, at);
        poll_.Stop(end - at + 1);
        if (end == at) {
          ++at;
          continue;
        }
        if (at > done) next_.push_back(base + at);
        next_.push_back(base + end);
        done = at = end;
      }
      if (done < piece.size()) next_.push_back(base + piece.size());
    });
  }

  void AppendByteEnds(size_t text_bytes, std::vector<uint32_t>& ends) const {
    for (const size_t end : ends_) {
      ends.push_back(end < chars_.size() ? chars_[end].begin : static_cast<uint32_t>(text_bytes));
    }
  }

 private:
  template <typename Cut>
  void Pass(Cut cut) {
    next_.clear();
    size_t begin = 0;
    for (const size_t end : ends_) {
      cut(chars_.subspan(begin, end - begin), begin);
      begin = end;
    }
    ends_.swap(next_);
  }

  Chars chars_;
  CancelPoll& poll_;
  std::vector<size_t> ends_;
  std::vector<size_t> next_;
};

size_t MatchThreeDigits(Chars chars, size_t at) {
  const auto digit = [&](size_t i) {
    return i < chars.size() && chars[i].code >= '0' && chars[i].code <= '9';
  };
  return digit(at) && digit(at + 1) && digit(at + 2) ? at + 3 : at;
}

void SplitDefault(Pieces& pieces, bool falcon) {
  const auto is_sign = [falcon](const Char& c) {
    constexpr std::string_view kSigns = "$+<=>^~|";
    return Is(c, kCharPunct) || (falcon && c.code == '`') ||
           (c.code < 0x80 && kSigns.find(static_cast<char>(c.code)) != kSigns.npos);
  };
  pieces.Isolate([&](Chars piece, size_t at) { return SkipWhile(piece, at, is_sign); });
  pieces.CutWords(MatchGpt2);
  if (!falcon) {
    pieces.Isolate([](Chars piece, size_t at) { return SkipClass(piece, at, kCharNumber); });
  }
  pieces.Isolate(MatchThreeDigits);
}

template <typename Predicate>
auto Single(Predicate predicate) {
  return [=](Chars piece, size_t at) { return predicate(piece[at]) ? at + 1 : at; };
}

// \s?[classes]+
auto SpacedRun(int classes) {
  return [=](Chars piece, size_t at) {
    const size_t word = at + (Is(piece[at], kCharSpace) ? 1 : 0);
    return IsAt(piece, word, classes) ? SkipClass(piece, word, classes) : at;
  };
}

bool IsCjkOfCoder(const Char& c) {
  return (c.code >= 0x0800 && c.code <= 0x9FA5) || (c.code >= 0xAC00 && c.code <= 0xD7FF);
}

bool IsCjkOfDeepSeek3(const Char& c) {
  return (c.code >= 0x4E00 && c.code <= 0x9FA5) || (c.code >= 0x3040 && c.code <= 0x30FF);
}

//  ?[^(\s|.,!?…。，、।۔،)]+
size_t MatchPoro(Chars piece, size_t at) {
  const auto is_word = [](const Char& c) {
    constexpr std::u32string_view kSigns = U"(|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)";
    return !Is(c, kCharSpace) && kSigns.find(c.code) == kSigns.npos;
  };
  const size_t word = at + (piece[at].code == ' ' ? 1 : 0);
  return word < piece.size() && is_word(piece[word]) ? SkipWhile(piece, word, is_word) : at;
}

// \s+$ : looks once at each run of white space.
size_t MatchFinalSpaces(Chars piece, size_t at) {
  if (at > 0 && Is(piece[at - 1], kCharSpace)) return at;
  const size_t end = SkipClass(piece, at, kCharSpace);
  return end == piece.size() ? end : at;
}

// Inclusive.
struct CodeRange {
  char32_t first;
  char32_t last;
};

bool IsIn(std::span<const CodeRange> ranges, char32_t code) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code,
      [](char32_t wanted, const CodeRange& range) { return wanted < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

// Letters with case, of the Unicode version that DeepSeek LLM's tokenizer lists them from.
constexpr CodeRange kLettersOfDeepSeekLlm[] = {
    {0x0041, 0x005A},   {0x0061, 0x007A},   {0x00B5, 0x00B5},   {0x00C0, 0x00D6},
    {0x00D8, 0x00F6},   {0x00F8, 0x01BA},   {0x01BC, 0x01BF},   {0x01C4, 0x0293},
    {0x0295, 0x02AF},   {0x0370, 0x0373},   {0x0376, 0x0376},   {0x0377, 0x0377},
    {0x037B, 0x037D},   {0x037F, 0x037F},   {0x0386, 0x0386},   {0x0388, 0x038A},
    {0x038C, 0x038C},   {0x038E, 0x03A1},   {0x03A3, 0x03F5},   {0x03F7, 0x0481},
    {0x048A, 0x052F},   {0x0531, 0x0556},   {0x10A0, 0x10C5},   {0x13A0, 0x13F5},
    {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},
    {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},
    {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},
    {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},
    {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},
    {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},
    {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},
    {0x213C, 0x213F},   {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2183},
    {0x2184, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},
    {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},
    {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},
    {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2},
    {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

constexpr CodeRange kSignsOfDeepSeekLlm[] = {{'!', '/'},       {':', '~'},       {0x2018, 0x201F},
                                             {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};

// \s?[ranges]+
auto SpacedRun(std::span<const CodeRange> ranges) {
  return [=](Chars piece, size_t at) {
    const auto is_in = [&](const Char& c) { return IsIn(ranges, c.code); };
    const size_t word = at + (Is(piece[at], kCharSpace) ? 1 : 0);
    if (word < piece.size() && is_in(piece[word])) return SkipWhile(piece, word, is_in);
    return is_in(piece[at]) ? SkipWhile(piece, at, is_in) : at;
  };
}

void SplitDeepSeekLlm(Pieces& pieces) {
  pieces.Isolate(Single(IsNewline));
  pieces.Isolate(SpacedRun(std::span<const CodeRange>(kLettersOfDeepSeekLlm)));
  pieces.Isolate(SpacedRun(std::span<const CodeRange>(kSignsOfDeepSeekLlm)));
  pieces.Isolate(MatchFinalSpaces);
  pieces.Isolate([](Chars piece, size_t at) { return SkipWhile(piece, at, IsCjkOfCoder); });
  pieces.Isolate([](Chars piece, size_t at) { return SkipClass(piece, at, kCharNumber); });
}

// [^\n]+|[\n]+
size_t MatchLine(Chars piece, size_t at) {
  const bool breaks = piece[at].code == '\n';
  return SkipWhile(piece, at, [=](const Char& c) { return (c.code == '\n') == breaks; });
}

void SplitDeepSeekCoder(Pieces& pieces) {
  pieces.Isolate(Single(IsNewline));
  pieces.Isolate(SpacedRun(kCharLetter));
  pieces.Isolate(SpacedRun(kCharPunct));
  pieces.Isolate([](Chars piece, size_t at) { return SkipWhile(piece, at, IsCjkOfCoder); });
  pieces.Isolate(Single([](const Char& c) { return Is(c, kCharNumber); }));
}

Variant VariantOf(PreTokenizer rule) {
  switch (rule) {
    case PreTokenizer::kLlama3:
    case PreTokenizer::kMiniCpm5:
      return {.numbers = 3};
    case PreTokenizer::kQwen35:
      return {.marks = true};
    case PreTokenizer::kSeedCoder:
      return {.line_breaks = false};
    case PreTokenizer::kWithoutContractions:
      return {.contractions = false};
    default:
      return {};
  }
}

auto Llama3Words(PreTokenizer rule) {
  return [v = VariantOf(rule)](Chars piece, size_t at) { return MatchLlama3(piece, at, v); };
}

struct Named {
  std::string_view name;
  PreTokenizerInfo info;
};

constexpr PreTokenizerInfo kGpt2Info = {PreTokenizer::kGpt2, false, false};
constexpr PreTokenizerInfo kDigitsInfo = {PreTokenizer::kSingleDigits, false, false};
constexpr PreTokenizerInfo kLlama3Info = {PreTokenizer::kLlama3, true, true};
constexpr PreTokenizerInfo kLlama3LikeInfo = {PreTokenizer::kLlama3, false, false};
// The published tokenizers of Qwen2 to Qwen3.5 normalise text; those of others with their rule are
// not known to.
constexpr PreTokenizerInfo kQwen2Info = {PreTokenizer::kQwen2, false, false, true};
constexpr PreTokenizerInfo kQwen2LikeInfo = {PreTokenizer::kQwen2, false, false};

constexpr Named kNames[] = {
    {"default", {PreTokenizer::kDefault, false, false}},
    {"gpt-2", kGpt2Info},
    {"gpt2", kGpt2Info},
    {"phi-2", kGpt2Info},
    {"mpt", kGpt2Info},
    {"olmo", kGpt2Info},
    {"jais", kGpt2Info},
    {"a.x-4.0", kGpt2Info},
    {"mellum", kGpt2Info},
    {"trillion", kGpt2Info},
    {"granite-docling", kGpt2Info},
    {"gigachat", kGpt2Info},
    {"roberta-bpe", kGpt2Info},
    {"exaone4", kGpt2Info},
    {"modern-bert", kGpt2Info},
    {"falcon", {PreTokenizer::kFalcon, false, false}},
    {"smollm", kDigitsInfo},
    {"starcoder", kDigitsInfo},
    {"refact", kDigitsInfo},
    {"command-r", kDigitsInfo},
    {"codeshell", kDigitsInfo},
    {"exaone", kDigitsInfo},
    {"minerva-7b", kDigitsInfo},
    {"mellum2", kDigitsInfo},
    {"llama-bpe", kLlama3Info},
    {"llama3", kLlama3Info},
    {"llama-v3", kLlama3Info},
    {"falcon3", kLlama3Info},
    {"falcon-h1", kLlama3Info},
    {"lfm2", kLlama3Info},
    {"pixtral", kLlama3Info},
    {"midm-2.0", kLlama3Info},
    {"dbrx", kLlama3LikeInfo},
    {"smaug-bpe", kLlama3LikeInfo},
    {"chatglm-bpe", kLlama3LikeInfo},
    {"glm4", kLlama3LikeInfo},
    {"qwen2", kQwen2Info},
    {"qwen3", kQwen2Info},
    {"deepseek-r1-qwen", kQwen2LikeInfo},
    {"stablelm2", kQwen2LikeInfo},
    {"megrez", kQwen2LikeInfo},
    {"kormo", kQwen2LikeInfo},
    {"hunyuan", kQwen2LikeInfo},
    {"solar-open", kQwen2LikeInfo},
    {"grok-2", kQwen2LikeInfo},
    {"bailingmoe", kQwen2LikeInfo},
    {"bailingmoe2", kQwen2LikeInfo},
    {"llada-moe", kQwen2LikeInfo},
    {"qwen35", {PreTokenizer::kQwen35, false, false, true}},
    {"seed-coder", {PreTokenizer::kSeedCoder, false, false}},
    {"ufakzeka", {PreTokenizer::kWithoutContractions, false, false}},
    {"laguna", {PreTokenizer::kLines, false, false}},
    {"minicpm5", {PreTokenizer::kMiniCpm5, true, false}},
    {"poro-chat", {PreTokenizer::kPoro, false, false}},
    {"bloom", {PreTokenizer::kPoro, false, false}},
    {"gpt3-finnish", {PreTokenizer::kPoro, false, false}},
    {"viking", {PreTokenizer::kViking, false, false}},
    {"deepseek-llm", {PreTokenizer::kDeepSeekLlm, false, false}},
    {"deepseek-coder", {PreTokenizer::kDeepSeekCoder, false, false}},
    {"deepseek-v3", {PreTokenizer::kDeepSeek3, false, false}},
    {"hunyuan-dense", {PreTokenizer::kDeepSeek3, false, false}},
    {"joyai-llm", {PreTokenizer::kDeepSeek3, false, false}},
    {"tekken", {PreTokenizer::kTekken, true, true}},
    {"gpt-4o", {PreTokenizer::kGpt4o, false, false}},
    {"llama4", {PreTokenizer::kGpt4o, false, false}},
    {"minimax-m2", {PreTokenizer::kGpt4o, false, false}},
};

}  // namespace

absl::StatusOr<PreTokenizerInfo> FindPreTokenizer(std::string_view name) {
  std::string known;
  for (const Named& named : kNames) {
    if (named.name == name) return named.info;
    absl::StrAppend(&known, known.empty() ? "" : ", ", ToAbsl(named.name));
  }
  return absl::UnimplementedError(absl::StrCat("pre-tokenizer \"", ValidUtf8(name, kMaxShownBytes),
                                               "\" is not known (known: ", known, ")"));
}

void SplitWords(PreTokenizer rule, std::string_view text, std::vector<uint32_t>& ends,
                CancelPoll* poll) {
  if (text.empty()) return;
  CancelPoll never(nullptr);
  CancelPoll& asked = poll != nullptr ? *poll : never;
  const std::vector<Char> chars = DecodeChars(text, &asked);
  Pieces pieces(chars, asked);
  switch (rule) {
    case PreTokenizer::kGpt2:
      pieces.CutWords(MatchGpt2);
      break;
    case PreTokenizer::kDefault:
    case PreTokenizer::kFalcon:
      SplitDefault(pieces, rule == PreTokenizer::kFalcon);
      break;
    case PreTokenizer::kSingleDigits:
      pieces.Isolate(Single([](const Char& c) { return Is(c, kCharNumber); }));
      pieces.CutWords(MatchGpt2);
      break;
    case PreTokenizer::kLines:
      pieces.CutWords(MatchLine);
      pieces.CutWords(Llama3Words(rule));
      break;
    case PreTokenizer::kMiniCpm5:
      pieces.Isolate([](Chars piece, size_t at) { return MatchNumbers(piece, at, 3); });
      pieces.CutWords(Llama3Words(rule));
      break;
    case PreTokenizer::kLlama3:
    case PreTokenizer::kQwen2:
    case PreTokenizer::kQwen35:
    case PreTokenizer::kSeedCoder:
    case PreTokenizer::kWithoutContractions:
      pieces.CutWords(Llama3Words(rule));
      break;
    case PreTokenizer::kPoro:
      pieces.Isolate(MatchPoro);
      break;
    case PreTokenizer::kViking:
      pieces.Isolate(MatchPoro);
      pieces.Isolate(Single([](const Char& c) { return Is(c, kCharNumber); }));
      break;
    case PreTokenizer::kDeepSeekLlm:
      SplitDeepSeekLlm(pieces);
      break;
    case PreTokenizer::kDeepSeekCoder:
      SplitDeepSeekCoder(pieces);
      break;
    case PreTokenizer::kDeepSeek3:
      pieces.Isolate([](Chars piece, size_t at) { return MatchNumbers(piece, at, 3); });
      pieces.Isolate([](Chars piece, size_t at) { return SkipWhile(piece, at, IsCjkOfDeepSeek3); });
      pieces.Isolate(MatchDeepSeek3);
      break;
    case PreTokenizer::kTekken:
      pieces.CutWords([](Chars piece, size_t at) {
        return MatchTekken(piece, at, {.contractions = false, .slashes = true});
      });
      break;
    case PreTokenizer::kGpt4o:
      pieces.CutWords([](Chars piece, size_t at) {
        return MatchTekken(piece, at, {.numbers = 3, .slashes = true});
      });
      break;
  }
  pieces.AppendByteEnds(text.size(), ends);
}

}  // namespace withy::engine

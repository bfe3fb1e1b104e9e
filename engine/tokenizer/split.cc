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

//  ?[^\s\p{L}\p{N}]+[\r\n]* (some rules also take trailing '/'), or `at`.
size_t MatchOthers(Chars chars, size_t at, bool trailing_slash) {
  const size_t word = at + (chars[at].code == ' ' ? 1 : 0);
  if (word >= chars.size() || !IsOther(chars[word])) return at;
  const size_t end = SkipWhile(chars, word, IsOther);
  return SkipWhile(
      chars, end, [=](const Char& c) { return IsNewline(c) || (trailing_slash && c.code == '/'); });
}

// The alternatives from punctuation on, with which most rules end.
size_t MatchOthersAndSpaces(Chars chars, size_t at, bool trailing_slash) {
  if (const size_t end = MatchOthers(chars, at, trailing_slash); end > at) return end;
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

size_t MatchLlama3(Chars chars, size_t at, size_t number_limit) {
  if (const size_t end = MatchContraction(chars, at, true); end > at) return end;
  if (const size_t word = LettersBegin(chars, at, kCharLetter); word < chars.size()) {
    return SkipClass(chars, word, kCharLetter);
  }
  if (Is(chars[at], kCharNumber)) return MatchNumbers(chars, at, number_limit);
  return MatchOthersAndSpaces(chars, at, false);
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

size_t MatchTekken(Chars chars, size_t at, bool contractions, size_t number_limit) {
  constexpr int kWord = kCharLetter | kCharMark;
  if (const size_t word = LettersBegin(chars, at, kWord); word < chars.size()) {
    const size_t end = MatchCasedWord(chars, word);
    return contractions ? MatchContraction(chars, end, true) : end;
  }
  if (Is(chars[at], kCharNumber)) return MatchNumbers(chars, at, number_limit);
  return MatchOthersAndSpaces(chars, at, true);
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

void SplitDeepSeekCoder(Pieces& pieces) {
  pieces.Isolate(Single(IsNewline));
  pieces.Isolate(SpacedRun(kCharLetter));
  pieces.Isolate(SpacedRun(kCharPunct));
  pieces.Isolate([](Chars piece, size_t at) { return SkipWhile(piece, at, IsCjkOfCoder); });
  pieces.Isolate(Single([](const Char& c) { return Is(c, kCharNumber); }));
}

struct Named {
  std::string_view name;
  PreTokenizerInfo info;
};

constexpr PreTokenizerInfo kGpt2Info = {PreTokenizer::kGpt2, false, false};
constexpr PreTokenizerInfo kDigitsInfo = {PreTokenizer::kSingleDigits, false, false};
constexpr PreTokenizerInfo kLlama3Info = {PreTokenizer::kLlama3, true, true};
constexpr PreTokenizerInfo kLlama3LikeInfo = {PreTokenizer::kLlama3, false, false};
constexpr PreTokenizerInfo kQwen2Info = {PreTokenizer::kQwen2, false, false};

constexpr Named kNames[] = {
    {"default", {PreTokenizer::kDefault, false, false}},
    {"gpt-2", kGpt2Info},
    {"gpt2", kGpt2Info},
    {"phi-2", kGpt2Info},
    {"mpt", kGpt2Info},
    {"olmo", kGpt2Info},
    {"jais", kGpt2Info},
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
    {"llama-bpe", kLlama3Info},
    {"llama3", kLlama3Info},
    {"llama-v3", kLlama3Info},
    {"falcon3", kLlama3Info},
    {"falcon-h1", kLlama3Info},
    {"lfm2", kLlama3Info},
    {"pixtral", kLlama3Info},
    {"dbrx", kLlama3LikeInfo},
    {"smaug-bpe", kLlama3LikeInfo},
    {"chatglm-bpe", kLlama3LikeInfo},
    {"qwen2", kQwen2Info},
    {"qwen3", kQwen2Info},
    {"deepseek-r1-qwen", kQwen2Info},
    {"stablelm2", kQwen2Info},
    {"megrez", kQwen2Info},
    {"deepseek-coder", {PreTokenizer::kDeepSeekCoder, false, false}},
    {"deepseek-v3", {PreTokenizer::kDeepSeek3, false, false}},
    {"tekken", {PreTokenizer::kTekken, true, true}},
    {"gpt-4o", {PreTokenizer::kGpt4o, false, false}},
    {"llama4", {PreTokenizer::kGpt4o, false, false}},
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
    case PreTokenizer::kLlama3:
      pieces.CutWords([](Chars piece, size_t at) { return MatchLlama3(piece, at, 3); });
      break;
    case PreTokenizer::kQwen2:
      pieces.CutWords([](Chars piece, size_t at) { return MatchLlama3(piece, at, 1); });
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
      pieces.CutWords([](Chars piece, size_t at) { return MatchTekken(piece, at, false, 1); });
      break;
    case PreTokenizer::kGpt4o:
      pieces.CutWords([](Chars piece, size_t at) { return MatchTekken(piece, at, true, 3); });
      break;
  }
  pieces.AppendByteEnds(text.size(), ends);
}

}  // namespace withy::engine

#include "engine/encoder/windows.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/tokenizer/unicode.h"

namespace withy::engine {
namespace {

constexpr int32_t kMaxBackUp =
    32;  // tokens by which a window may be shortened to end between words

// Scripts without spaces between words, whose characters may be words of their own.
bool StandsAlone(char32_t code) {
  return (code >= 0x3040 && code <= 0x30FF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0x20000 && code <= 0x2FA1F);
}

absl::Status CheckSlo(const char* name, double ratio) {
  if (std::isfinite(ratio) && ratio > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "SLO ", name, " ratio is ", ratio, "; it must be a number above 0, such as 0.5 for half"));
}

absl::Status CheckWords(std::span<const ByteSpan> words, size_t text_bytes) {
  uint32_t at = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].begin < at || words[i].end < words[i].begin || words[i].end > text_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("word ", i, " is bytes ", words[i].begin, " to ", words[i].end,
                       " of a text of ", text_bytes, "; words are in order and do not overlap"));
    }
    at = words[i].end;
  }
  return absl::OkStatus();
}

// Finds the tokens that overlap each word; both lists are in order.
void MapWords(WindowedText* text) {
  size_t first = 0;
  for (const ByteSpan& word : text->words) {
    while (first < text->spans.size() && text->spans[first].end <= word.begin) ++first;
    size_t last = first;
    while (last < text->spans.size() && text->spans[last].begin < word.end) ++last;
    text->word_tokens.emplace_back(static_cast<int32_t>(first), static_cast<int32_t>(last));
  }
}

}  // namespace

std::vector<ByteSpan> SplitWords(std::string_view text) {
  std::vector<ByteSpan> words;
  const std::vector<Char> chars = DecodeChars(text);
  bool open = false;
  for (size_t i = 0; i < chars.size(); ++i) {
    const auto end = i + 1 < chars.size() ? chars[i + 1].begin : static_cast<uint32_t>(text.size());
    if ((chars[i].classes & kCharSpace) != 0) {
      open = false;
      continue;
    }
    const bool alone = StandsAlone(chars[i].code);
    if (!open || alone) {
      words.push_back({chars[i].begin, end});
    } else {
      words.back().end = end;
    }
    open = !alone;
  }
  return words;
}

int32_t SloStep(double ratio, int32_t steps) {
  const double step = std::floor(std::min(ratio, 1.0) * steps + 1e-6);
  return std::clamp(static_cast<int32_t>(step), 1, steps);
}

std::vector<std::pair<int32_t, int32_t>> CutTokens(std::span<const bool> joined, int32_t capacity) {
  const auto tokens = static_cast<int32_t>(joined.size());
  std::vector<std::pair<int32_t, int32_t>> pieces;
  int32_t begin = 0;
  do {
    const int32_t rest = tokens - begin;
    const int32_t windows = std::max(1, (rest + capacity - 1) / capacity);
    int32_t end = begin + (rest + windows - 1) / windows;
    if (end < tokens) {
      const int32_t lowest = std::max(begin + 1, end - kMaxBackUp);
      int32_t at = end;
      while (at >= lowest && joined[static_cast<size_t>(at)]) --at;
      if (at >= lowest) end = at;
    }
    pieces.emplace_back(begin, end);
    begin = end;
  } while (begin < tokens);
  return pieces;
}

absl::StatusOr<WindowMaker> WindowMaker::Create(const Tokenizer& tokenizer, const TlmShape& shape,
                                                std::string_view where) {
  const auto bad = [where](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(where), ": ", what,
        "; the TLM's file must hold the vocabulary it was trained with: export it again"));
  };
  if (tokenizer.vocab_size() != shape.encoder.vocab) {
    return bad(absl::StrCat("the tokenizer has ", tokenizer.vocab_size(),
                            " tokens, but mobilebert.vocab_size is ", shape.encoder.vocab));
  }
  if (tokenizer.bos_id() == kNoToken) return bad("the vocabulary names no [CLS]");
  if (tokenizer.eos_id() == kNoToken) return bad("the vocabulary names no [SEP]");
  WindowMaker maker(tokenizer, shape.window);
  for (int32_t step = 1; step <= shape.slo_steps; ++step) {
    for (const auto& [text, ids] :
         {std::pair{TtftToken(step), &maker.ttft_}, std::pair{TpotToken(step), &maker.tpot_}}) {
      const std::optional<int32_t> id = tokenizer.FindToken(text);
      if (!id) return bad(absl::StrCat("the vocabulary lacks the SLO token ", text));
      if (!tokenizer.IsControl(*id)) {
        return bad(absl::StrCat("the SLO token ", text, " is an ordinary token, which a prompt ",
                                "could forge; its token_type must be 3 (control)"));
      }
      ids->push_back(*id);
    }
  }
  return maker;
}

absl::StatusOr<WindowedText> WindowMaker::Make(std::string_view text, const TlmSlo& slo,
                                               std::span<const ByteSpan> words,
                                               size_t max_bytes) const {
  WITHY_RETURN_IF_ERROR(CheckSlo("TTFT", slo.ttft_ratio));
  WITHY_RETURN_IF_ERROR(CheckSlo("TPOT", slo.tpot_ratio));
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes, more than the TLM's limit of ",
                     max_bytes, "; decide this call without the TLM"));
  }
  WITHY_RETURN_IF_ERROR(CheckWords(words, text.size()));
  WindowedText made;
  made.words = words.empty() ? SplitWords(text) : std::vector<ByteSpan>(words.begin(), words.end());
  const TextPiece piece{text, false};
  Encoding encoding = tokenizer_->EncodePieces({&piece, 1}, {});
  made.spans = std::move(encoding.spans);
  MapWords(&made);
  const size_t tokens = encoding.ids.size();
  const auto joined = std::make_unique<bool[]>(tokens);
  for (const auto& [first, last] : made.word_tokens) {
    for (int32_t i = first + 1; i < last; ++i) joined[static_cast<size_t>(i)] = true;
  }
  const auto steps = static_cast<int32_t>(ttft_.size());
  const int32_t ttft = ttft_[static_cast<size_t>(SloStep(slo.ttft_ratio, steps) - 1)];
  const int32_t tpot = tpot_[static_cast<size_t>(SloStep(slo.tpot_ratio, steps) - 1)];
  made.tokens.reserve(tokens);
  for (const auto& [begin, end] :
       CutTokens({joined.get(), tokens}, window_ - kWindowPrefix - kWindowSuffix)) {
    std::vector<int32_t> ids = {tokenizer_->bos_id(), ttft, tpot};
    for (int32_t i = begin; i < end; ++i) {
      made.tokens.push_back({static_cast<int32_t>(made.windows.size()), kWindowPrefix + i - begin});
      ids.push_back(encoding.ids[static_cast<size_t>(i)]);
    }
    ids.push_back(tokenizer_->eos_id());
    made.windows.push_back(std::move(ids));
  }
  return made;
}

}  // namespace withy::engine

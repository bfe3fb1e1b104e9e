// Text to the windows that a TLM reads, and back from tokens to words. Each window is [CLS], the
// TTFT token, the TPOT token, text, [SEP]. Neighbours: tokenizer/ cuts words into pieces, encoder.h
// runs the windows; training must cut text with this too. Pure: no weights, no computing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/shape.h"
#include "engine/tokenizer/text.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// What the caller wants, as ratios of the full model's latency: 0.4 is 40 %.
struct TlmSlo {
  double ttft_ratio = 1;
  double tpot_ratio = 1;
};

inline constexpr int32_t kWindowPrefix = 3;  // [CLS] and both SLO tokens
inline constexpr int32_t kWindowSuffix = 1;  // [SEP]

// A text token in its window.
struct TextToken {
  int32_t window = 0;
  int32_t row = 0;  // within the window
};

struct WindowedText {
  std::vector<std::vector<int32_t>> windows;  // at least one; ids with special tokens
  std::vector<TextToken> tokens;              // of the text, in order
  std::vector<ByteSpan> spans;                // of each token: bytes of the text
  std::vector<ByteSpan> words;
  std::vector<std::pair<int32_t, int32_t>> word_tokens;  // tokens [first, second) of each word
};

// Words: runs of characters that are not white space, of any script; an ideograph (and a kana) is a
// word of its own. Spans are in order, do not overlap and hold no white space.
std::vector<ByteSpan> SplitWords(std::string_view text);

// The step (1 .. steps) that stands for `ratio`: rounded down, so that the TLM never aims slower
// than asked; ratios beyond either end take the end. `ratio` is finite and above 0.
int32_t SloStep(double ratio, int32_t steps);

// Where windows end: cuts `tokens` text tokens into pieces of at most `capacity`, as even as they
// can be, each moved back to the start of a word (`joined[i]`: token i goes on the word of token
// i - 1) when one begins within 32 tokens. At least one piece, which may be empty.
std::vector<std::pair<int32_t, int32_t>> CutTokens(std::span<const bool> joined, int32_t capacity);

// Immutable; any thread. Borrows the tokenizer.
class WindowMaker {
 public:
  // Errors: InvalidArgument naming `where` when the vocabulary's size is not the shape's, or when
  // it lacks [CLS], [SEP] or an SLO token.
  static absl::StatusOr<WindowMaker> Create(const Tokenizer& tokenizer, const TlmShape& shape,
                                            std::string_view where);

  // `words`: what gets a score, in order and not overlapping; empty: SplitWords(text). Errors:
  // InvalidArgument for an SLO that is not a finite number above 0, a text of more than
  // `max_bytes`, words outside the text or out of order; each names value and limit.
  absl::StatusOr<WindowedText> Make(std::string_view text, const TlmSlo& slo,
                                    std::span<const ByteSpan> words, size_t max_bytes) const;

 private:
  WindowMaker(const Tokenizer& tokenizer, int32_t window)
      : tokenizer_(&tokenizer), window_(window) {}

  const Tokenizer* tokenizer_;
  int32_t window_;
  std::vector<int32_t> ttft_;  // by step - 1
  std::vector<int32_t> tpot_;
};

}  // namespace withy::engine

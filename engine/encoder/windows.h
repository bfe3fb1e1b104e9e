// Converts text to the windows a TLM reads, and maps tokens back to words. Each window is [CLS],
// the TTFT token, the TPOT token, text, [SEP]. Neighbours: tokenizer/ splits words into pieces,
// encoder.h runs the windows; training uses it, too. Pure: no weights, no computing.
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

// The caller's SLO as ratios of the full model's latency: 0.4 is 40 %.
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
  std::vector<std::vector<int32_t>> windows;  // at least one; ids including special tokens
  std::vector<TextToken> tokens;              // of the text, in order
  std::vector<ByteSpan> spans;                // byte range in the text of each token
  std::vector<ByteSpan> words;
  std::vector<std::pair<int32_t, int32_t>> word_tokens;  // tokens [first, second) of each word
};

// Words: runs of characters other than white space, in any script; an ideograph or kana is a word
// of its own. Spans are in order, do not overlap and contain no white space.
std::vector<ByteSpan> SplitWords(std::string_view text);

// The step (1 .. steps) for `ratio`: rounded down, so that the TLM never aims slower than
// requested, and clamped. `ratio` is finite and above 0.
int32_t SloStep(double ratio, int32_t steps);

// Divides `tokens` text tokens into windows of at most `capacity`, as even as possible. Each border
// moves back to the start of a word if one begins within 32 tokens (`joined[i]`: token i continues
// the word of token i - 1). Returns at least one window, which may be empty.
std::vector<std::pair<int32_t, int32_t>> CutTokens(std::span<const bool> joined, int32_t capacity);

// Immutable; thread-safe. Borrows the tokenizer.
class WindowMaker {
 public:
  // Errors: InvalidArgument naming `where` if the vocabulary has the wrong size or lacks [CLS],
  // [SEP] or an SLO token.
  static absl::StatusOr<WindowMaker> Create(const Tokenizer& tokenizer, const TlmShape& shape,
                                            std::string_view where);

  // `words`: the units to score, in order and not overlapping; empty: SplitWords(text). Errors:
  // InvalidArgument for an SLO that is not finite and above 0, a text of more than `max_bytes`,
  // words outside the text or out of order; each names value and limit.
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

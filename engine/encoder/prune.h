// Which words of a prompt stay when only a share of them may: the best by the TLM's scores. Pure.
// Neighbours: tlm.h gives the scores; the orchestrator prunes prompts by this, training the TLM
// shortens its examples by it. Does not count tokens.
//
// Earlier exchanges go first, and whole: worked examples, most often, of which half a question and
// half an answer say nothing. Then words.
//
// Sources: ElastiLM section 3.3, prompt refining by the score head; examples before words as by the
// budget controller of LLMLingua (Jiang et al. 2023). Ours ranks whole words, keeps what the caller
// marked, leaves no other message without words, and keeps line breaks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/text.h"

namespace withy::engine {

struct ScoredWord {
  ByteSpan span;         // of its message's text
  float keep = 0;        // 0 .. 1, higher stays longer
  bool readable = true;  // false: the TLM found nothing in it to score
};

// One message of the new prompt.
struct PrunableText {
  std::string_view text;
  std::vector<ScoredWord> words;  // in order, not overlapping
  std::vector<ByteSpan> fixed;    // parts that stay; ascending
  std::string_view role = {};     // as in ChatMessage; empty: raw text
};

struct PrunedPrompt {
  // Bytes that stay, for each message; empty = all of it. Ascending and apart. One empty span: the
  // message is left out.
  std::vector<std::vector<ByteSpan>> kept;
  uint32_t words = 0;
  uint32_t pruned_words = 0;
  size_t text_bytes = 0;
  size_t kept_bytes = 0;
};

// By message and word, what stays: `percent` (1..100) of the words of all messages together,
// rounded up. A word that touches a fixed part stays and counts.
// An earlier exchange is what was said up to an answer of the assistant and since the one before,
// the answer included; it may go when nothing in it is fixed and each message has words. Of these
// as many as there is room for beside all other messages stay, the highest mean scores first, later
// ones before earlier; the best that does not fit is shortened if half of it does. Without room for
// the other messages all of them go, and those are shortened: every one that has words keeps one,
// equal scores keep the earlier word.
std::vector<std::vector<bool>> ChooseWords(const std::vector<PrunableText>& messages,
                                           uint32_t percent);

// Of all words, the share in no exchange that may go, in per cent, rounded up. Prune() to it leaves
// out all exchanges that may go and nothing else, whatever the scores. 100: there are none.
uint32_t ShareWithoutExamples(const std::vector<PrunableText>& messages);

// A prompt with a smaller share is mostly worked examples, and bears shortening.
inline constexpr uint32_t kMostlyExamples = 50;

// By message: its exchange may go, and no word of it stays.
std::vector<bool> LeftOut(const std::vector<PrunableText>& messages,
                          const std::vector<std::vector<bool>>& stays);

// The bytes of a message that stay: fixed parts, the words that stay, and between two of them white
// space where there was any. Empty = all of it.
std::vector<ByteSpan> KeptSpans(const PrunableText& message, const std::vector<bool>& stays);

// Both.
PrunedPrompt Prune(const std::vector<PrunableText>& messages, uint32_t percent);

// Why no share of these messages can be chosen: there are no words, or none that the TLM can read,
// or all are fixed. Empty = it can.
std::string WhyNotPrunable(const std::vector<PrunableText>& messages);

}  // namespace withy::engine

// Chooses which words of a prompt to keep for a given share: those with the highest TLM scores.
// Pure. Neighbours: tlm.h gives the scores; the orchestrator prunes prompts and TLM training
// shortens its examples with it. Does not count tokens.
//
// Earlier exchanges are dropped first, and completely: most are worked examples, of which a partial
// question or answer is useless. Words are dropped after that.
//
// Sources: ElastiLM section 3.3, prompt refining by the score head; examples before words as in the
// budget controller of LLMLingua (Jiang et al. 2023). Ours ranks whole words, keeps the caller's
// fixed parts, keeps at least one word of every other message, and keeps line breaks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/text.h"

namespace withy::engine {

struct ScoredWord {
  ByteSpan span;         // in its message's text
  float keep = 0;        // 0 .. 1; higher is kept longer
  bool readable = true;  // false: the TLM found nothing to score in it
};

// One message of the new prompt.
struct PrunableText {
  std::string_view text;
  std::vector<ScoredWord> words;  // in order, not overlapping
  std::vector<ByteSpan> fixed;    // parts to keep; ascending
  std::string_view role = {};     // as in ChatMessage; empty: raw text
};

struct PrunedPrompt {
  // Per message the byte spans to keep, ascending and disjoint; empty = the whole message. One
  // empty span: the message is left out.
  std::vector<std::vector<ByteSpan>> kept;
  uint32_t words = 0;
  uint32_t pruned_words = 0;
  size_t text_bytes = 0;
  size_t kept_bytes = 0;
};

// Per message and word, whether to keep it: `percent` (1..100) of the words of all messages,
// rounded up. A word that touches a fixed part is kept and counts. An earlier exchange is an answer
// of the assistant and the messages between it and the previous answer. It may be dropped if no
// part of it is fixed and each of its messages has words. As many exchanges are kept as fit beside
// all other messages, by highest mean score, ties to the later one. The best one that does not fit
// is shortened if half of it fits. If not even the other messages fit, all exchanges are dropped
// and the others are shortened: each message with words keeps at least one; ties go to the earlier
// word.
std::vector<std::vector<bool>> ChooseWords(const std::vector<PrunableText>& messages,
                                           uint32_t percent);

// Share of words outside exchanges that may be dropped, in per cent, rounded up. Prune() with this
// share drops exactly these exchanges, whatever the scores. 100: there are none.
uint32_t ShareWithoutExamples(const std::vector<PrunableText>& messages);

// A prompt whose ShareWithoutExamples is below this is mostly worked examples and tolerates
// pruning.
inline constexpr uint32_t kMostlyExamples = 50;

// Per message: true if its exchange may be dropped and none of its words is kept.
std::vector<bool> LeftOut(const std::vector<PrunableText>& messages,
                          const std::vector<std::vector<bool>>& stays);

// The byte spans of a message to keep: fixed parts, kept words, and existing white space between
// kept neighbours. Empty = the whole message.
std::vector<ByteSpan> KeptSpans(const PrunableText& message, const std::vector<bool>& stays);

// ChooseWords and KeptSpans for all messages.
PrunedPrompt Prune(const std::vector<PrunableText>& messages, uint32_t percent);

// Reason why these messages cannot be pruned: no words, no words the TLM can read, or everything
// fixed. Empty = they can.
std::string WhyNotPrunable(const std::vector<PrunableText>& messages);

}  // namespace withy::engine

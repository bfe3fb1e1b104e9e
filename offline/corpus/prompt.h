// A corpus record as the service would prune it: the text that the TLM reads, its words, and the
// record with words left out. Pure. Neighbours: shorten.h drops words for training,
// tlm/score_labels.h drops single words, tlm/decision_table.h prunes to a share;
// engine/encoder/prune.h chooses the words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer/text.h"
#include "offline/corpus/record.h"

namespace withy::corpus {

struct PromptWord {
  size_t message = 0;
  engine::ByteSpan span;  // in the message's content
  bool fixed = false;     // touches a part that pruning must keep
};

struct Prompt {
  Record record;
  std::string text;                          // the messages, joined by line breaks
  std::vector<engine::ByteSpan> text_words;  // words of `text`, from engine::SplitWords
  std::vector<PromptWord> words;             // the same words, located in their messages
};

// The record as an app would send it: everything before the last question is an example, which
// pruning may shorten or drop.
Record FreeExamples(Record record);

Prompt MakePrompt(Record record);

// See engine::ShareWithoutExamples.
uint32_t ShareWithoutExamples(const Prompt& prompt);

// Which words to keep for a share of `percent`, by highest `keep` [words], as the orchestrator
// chooses them.
std::vector<bool> ChooseWords(const Prompt& prompt, std::span<const float> keep, int32_t percent);

// The record with only the words in `stays` [words]. Exchanges without any are dropped.
Record KeepWords(const Prompt& prompt, const std::vector<bool>& stays);

}  // namespace withy::corpus

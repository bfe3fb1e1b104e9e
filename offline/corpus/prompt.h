// A record of the corpus as the service would prune it: the text that the TLM reads, its words, and
// the record again with words left out. Pure. Neighbours: shorten.h leaves words out for training,
// tlm/score_labels.h drops single ones, tlm/decision_table.h shortens to a share;
// engine/encoder/prune.h says which words go.
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
  engine::ByteSpan span;  // of the message's content
  bool fixed = false;     // touches a part that pruning must keep
};

struct Prompt {
  Record record;
  std::string text;                          // the messages with a line break between them
  std::vector<engine::ByteSpan> text_words;  // of `text`, as engine::SplitWords gives them
  std::vector<PromptWord> words;             // the same words in their messages
};

// The record as an app would send it: what stands before the last question is an example, which
// pruning may shorten or leave out.
Record FreeExamples(Record record);

Prompt MakePrompt(Record record);

// As engine::ShareWithoutExamples.
uint32_t ShareWithoutExamples(const Prompt& prompt);

// Which words stay when `percent` of them may, the highest `keep` first: as the orchestrator
// chooses. keep: [words].
std::vector<bool> ChooseWords(const Prompt& prompt, std::span<const float> keep, int32_t percent);

// The record with only the words that stay: [words]. Exchanges without any are left out.
Record KeepWords(const Prompt& prompt, const std::vector<bool>& stays);

}  // namespace withy::corpus

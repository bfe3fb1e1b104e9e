#include "elasticizer/corpus/prompt.h"

#include <algorithm>
#include <utility>

#include "engine/encoder/prune.h"
#include "engine/encoder/windows.h"

namespace withy::corpus {
namespace {

using engine::ByteSpan;

bool Touches(const ByteSpan& word, const std::vector<Span>& fixed) {
  return std::any_of(fixed.begin(), fixed.end(), [&](const Span& span) {
    return span.begin < word.end && word.begin < span.end;
  });
}

// The messages as pruning sees them; views of `prompt`. keep: [words], or empty where scores do not
// matter.
std::vector<engine::PrunableText> Messages(const Prompt& prompt, std::span<const float> keep) {
  std::vector<engine::PrunableText> messages;
  for (const Message& message : prompt.record.messages) {
    engine::PrunableText& text = messages.emplace_back();
    text.text = message.content;
    for (const Span& span : message.fixed)
      text.fixed.push_back({static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)});
  }
  for (size_t i = 0; i < prompt.words.size(); ++i) {
    const PromptWord& word = prompt.words[i];
    messages[word.message].words.push_back(
        {.span = word.span, .keep = keep.empty() ? 0.0f : keep[i], .readable = true});
  }
  return messages;
}

}  // namespace

Prompt MakePrompt(Record record) {
  Prompt prompt;
  for (size_t m = 0; m < record.messages.size(); ++m) {
    const Message& message = record.messages[m];
    if (m > 0) prompt.text.push_back('\n');
    const auto begin = static_cast<uint32_t>(prompt.text.size());
    for (const ByteSpan& word : engine::SplitWords(message.content)) {
      prompt.words.push_back({m, word, Touches(word, message.fixed)});
      prompt.text_words.push_back({begin + word.begin, begin + word.end});
    }
    prompt.text += message.content;
  }
  prompt.record = std::move(record);
  return prompt;
}

std::vector<bool> ChooseWords(const Prompt& prompt, std::span<const float> keep, int32_t percent) {
  std::vector<bool> stays;
  for (const std::vector<bool>& message :
       engine::ChooseWords(Messages(prompt, keep), static_cast<uint32_t>(percent))) {
    stays.insert(stays.end(), message.begin(), message.end());
  }
  return stays;
}

Record KeepWords(const Prompt& prompt, const std::vector<bool>& stays) {
  Record record = prompt.record;
  const std::vector<engine::PrunableText> messages = Messages(prompt, {});
  auto next = stays.begin();
  for (size_t m = 0; m < messages.size(); ++m) {
    const auto end = next + static_cast<ptrdiff_t>(messages[m].words.size());
    const std::vector<ByteSpan> kept = engine::KeptSpans(messages[m], {next, end});
    next = end;
    record.messages[m].fixed.clear();
    if (kept.empty()) continue;
    std::string& content = record.messages[m].content;
    content.clear();
    for (const ByteSpan& span : kept)
      content += messages[m].text.substr(span.begin, span.end - span.begin);
  }
  return record;
}

}  // namespace withy::corpus

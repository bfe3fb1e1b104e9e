#include "offline/corpus/prompt.h"

#include <algorithm>
#include <string_view>
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

// The messages as pruning sees them, as views of `prompt`. keep: [words], or empty if scores do not
// matter.
std::vector<engine::PrunableText> Messages(const Prompt& prompt, std::span<const float> keep) {
  std::vector<engine::PrunableText> messages;
  for (const Message& message : prompt.record.messages) {
    engine::PrunableText& text = messages.emplace_back();
    text.text = message.content;
    text.role = message.role;
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

Record FreeExamples(Record record) {
  for (size_t m = 0; m + 1 < record.messages.size(); ++m) {
    if (record.messages[m].role != "system") record.messages[m].fixed.clear();
  }
  return record;
}

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

uint32_t ShareWithoutExamples(const Prompt& prompt) {
  return engine::ShareWithoutExamples(Messages(prompt, {}));
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
  const std::vector<engine::PrunableText> messages = Messages(prompt, {});
  std::vector<std::vector<bool>> by_message;
  auto next = stays.begin();
  for (const engine::PrunableText& message : messages) {
    const auto end = next + static_cast<ptrdiff_t>(message.words.size());
    by_message.emplace_back(next, end);
    next = end;
  }
  const std::vector<bool> left_out = engine::LeftOut(messages, by_message);
  Record record = prompt.record;
  record.messages.clear();
  for (size_t m = 0; m < messages.size(); ++m) {
    if (left_out[m]) continue;
    Message& message = record.messages.emplace_back();
    message.role = prompt.record.messages[m].role;
    const std::string_view text = messages[m].text;
    const std::vector<ByteSpan> kept = engine::KeptSpans(messages[m], by_message[m]);
    if (kept.empty()) message.content = text;
    for (const ByteSpan& span : kept)
      message.content += text.substr(span.begin, span.end - span.begin);
  }
  return record;
}

}  // namespace withy::corpus

#include "offline/corpus/shorten.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offline/corpus/prompt.h"

namespace withy::corpus {
namespace {

constexpr int kMinPercent = 35;
constexpr int kMaxPercent = 90;
constexpr size_t kTellingLetters =
    4;  // minimum letters of an informative word that is not a name: "lamp", not "the"

bool IsLetterOrDigit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

std::vector<std::string> LowerCaseWords(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (IsLetterOrDigit(c)) {
      words.back().push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

bool IsName(std::string_view word) {
  return std::any_of(word.begin(), word.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isupper(byte) != 0 || std::isdigit(byte) != 0;
  });
}

// Informative words of the questions and of the assistant's messages.
std::set<std::string> Asked(const Record& record) {
  std::set<std::string> asked;
  const auto add = [&](std::string_view text) {
    for (std::string& word : LowerCaseWords(text)) {
      if (word.size() >= kTellingLetters || IsName(word)) asked.insert(std::move(word));
    }
  };
  add(record.answer);
  for (const Message& message : record.messages) {
    if (message.role == "assistant") add(message.content);
    if (message.role != "user") continue;
    for (const Span& span : message.fixed)
      add(std::string_view(message.content).substr(span.begin, span.end - span.begin));
  }
  return asked;
}

}  // namespace

Record Shorten(const Record& record, Rng& rng) {
  const std::set<std::string> asked = Asked(record);
  Prompt prompt;
  {
    Record whole = record;
    for (Message& message : whole.messages) {
      if (message.role == "assistant") message.fixed = {{0, message.content.size()}};
    }
    prompt = MakePrompt(std::move(whole));
  }
  std::vector<float> keep;
  for (const PromptWord& word : prompt.words) {
    const std::string_view text = std::string_view(prompt.record.messages[word.message].content)
                                      .substr(word.span.begin, word.span.end - word.span.begin);
    float& score = keep.emplace_back(static_cast<float>(rng.Below(1000)) / 1000);
    if (IsName(text)) score += 0.5f;
    for (const std::string& part : LowerCaseWords(text)) {
      if (!asked.contains(part)) continue;
      score += 1;
      break;
    }
  }
  return KeepWords(prompt, ChooseWords(prompt, keep, rng.Between(kMinPercent, kMaxPercent)));
}

}  // namespace withy::corpus

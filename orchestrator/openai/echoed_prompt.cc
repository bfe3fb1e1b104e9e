#include "orchestrator/openai/echoed_prompt.h"

#include <utility>

namespace withy::orchestrator {

std::vector<v1::Token> EchoedTokens(std::string_view prompt, std::vector<v1::Token> scored) {
  size_t bytes = 0;
  for (const v1::Token& token : scored) bytes += token.text().size();
  // Some vocabularies put a space before a text.
  if (!scored.empty() && bytes == prompt.size() + 1 && scored.front().text().starts_with(' ')) {
    scored.front().mutable_text()->erase(0, 1);
    --bytes;
  }
  if (bytes < prompt.size()) {
    v1::Token first;
    first.set_text(std::string(prompt.substr(0, prompt.size() - bytes)));
    scored.insert(scored.begin(), std::move(first));
  } else if (!scored.empty()) {
    scored.front().clear_logprob();
    scored.front().clear_alternatives();
  }
  return scored;
}

void CharacterCounter::Add(std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte & 0xC0) == 0x80) {
      if (missing_ > 0) --missing_;
      continue;
    }
    ++begun_;
    missing_ = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
  }
}

}  // namespace withy::orchestrator

#include "engine/chat/vocabulary_format.h"

#include <string_view>
#include <unordered_set>

namespace withy::engine {
namespace {

// Set of the vocabulary's markup: few tokens look like it.
class Markup {
 public:
  explicit Markup(const GgufFile& file) {
    const auto tokens = file.GetStringArray("tokenizer.ggml.tokens");
    if (!tokens.ok()) return;
    for (const std::string_view token : *tokens) {
      const bool markup = token.size() > 2 &&
                          (token.front() == '<' || token.front() == '[' || token.starts_with(">>"));
      if (markup) found_.insert(token);
    }
  }
  template <typename... Texts>
  bool HasAll(Texts... texts) const {
    return (found_.contains(texts) && ...);
  }
  template <typename... Texts>
  bool HasAny(Texts... texts) const {
    return (found_.contains(texts) || ...);
  }

 private:
  std::unordered_set<std::string_view> found_;
};

}  // namespace

VocabularyFormat FindVocabularyFormat(const GgufFile& file) {
  const Markup markup(file);
  const bool spm = file.GetStringOr("tokenizer.ggml.model", "").value_or("") == "llama";
  if (markup.HasAll("<|im_start|>", "<|im_end|>") && !markup.HasAny("<|im_sep|>")) {
    return {.name = "chatml", .tokens = "<|im_start|>, <|im_end|>", .sample = ""};
  }
  if (markup.HasAll("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")) {
    return {.name = "llama3", .tokens = "<|start_header_id|>, <|eot_id|>", .sample = ""};
  }
  if (markup.HasAll("<start_of_turn>", "<end_of_turn>")) {
    return {.name = "gemma", .tokens = "<start_of_turn>, <end_of_turn>", .sample = ""};
  }
  if (markup.HasAll("[INST]", "[/INST]", "[AVAILABLE_TOOLS]") &&
      !markup.HasAny("[SYSTEM_PROMPT]")) {
    // The published spacing differs between the vocabularies: a template of each.
    return {.name = "mistral",
            .tokens = "[INST], [/INST], [AVAILABLE_TOOLS]",
            .sample = spm ? "[AVAILABLE_TOOLS]" : "\"[INST]\""};
  }
  if (!markup.HasAll("<|user|>", "<|assistant|>")) return {};
  // Other formats with these tokens leave out line breaks or the ends of turns.
  if (markup.HasAny("[gMASK]", "<|channel|>", ">>TITLE<<", "<|start|>")) return {};
  if (markup.HasAny("<|end|>")) {
    if (!spm) return {};
    return {.name = "phi3", .tokens = "<|user|>, <|assistant|>, <|end|>", .sample = ""};
  }
  if (markup.HasAny("<|system|>")) {
    return {.name = "zephyr", .tokens = "<|system|>, <|user|>, <|assistant|>", .sample = ""};
  }
  return {};
}

}  // namespace withy::engine

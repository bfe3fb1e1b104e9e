// Recognises the format of a file's template by the markup in its text.
#include "engine/chat/template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/chat/vocabulary_format.h"

namespace withy::engine {
namespace {

struct NamedFormat {
  std::string_view name;
  ChatFormat format;
};

constexpr NamedFormat kNames[] = {
    {"plain", ChatFormat::kPlain},   {"chatml", ChatFormat::kChatMl},
    {"llama2", ChatFormat::kLlama2}, {"llama3", ChatFormat::kLlama3},
    {"zephyr", ChatFormat::kZephyr}, {"mistral", ChatFormat::kMistral},
    {"gemma", ChatFormat::kGemma},   {"phi3", ChatFormat::kPhi3},
};

std::string KnownNames() {
  std::string names;
  for (const NamedFormat& named : kNames) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(named.name));
  }
  return names;
}

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

ChatTemplate ChatTemplate::Tagged(ChatFormat format, std::string before_role,
                                  std::string after_role, std::string turn_end, bool trims) {
  Form form;
  form.format = format;
  form.trims = trims;
  form.before_role = std::move(before_role);
  form.after_role = std::move(after_role);
  form.turn_end = std::move(turn_end);
  return ChatTemplate(std::move(form));
}

ChatTemplate ChatTemplate::Zephyr(std::string turn_end) {
  return Tagged(ChatFormat::kZephyr, "<|", "|>\n", std::move(turn_end) + "\n", false);
}

ChatTemplate ChatTemplate::Llama2() {
  Form form;
  form.format = ChatFormat::kLlama2;
  form.trims = true;
  form.open = "[INST] ";
  form.open_again = "<s>[INST] ";
  form.system_open = "<<SYS>>\n";
  form.system_close = "\n<</SYS>>\n\n";
  form.close = " [/INST]";
  form.answer_open = " ";
  form.answer_close = " </s>";
  return ChatTemplate(std::move(form));
}

// The published Mistral templates differ only in spaces: the first ones, those with tools (v3),
// those for the Tekken vocabulary, and those with a separate system prompt (v7).
ChatTemplate ChatTemplate::Mistral(std::string_view text) {
  const bool v7 = Contains(text, "[SYSTEM_PROMPT]");
  const bool tekken = !v7 && Contains(text, "\"[INST]\"");
  const bool spaced =
      Contains(text, " [INST]") || Contains(text, "' [/INST]'") || Contains(text, "\" [/INST]\"");
  const bool v3 = Contains(text, "[AVAILABLE_TOOLS]") && !spaced;
  Form form;
  form.format = ChatFormat::kMistral;
  form.open = form.open_again = tekken ? "[INST]" : "[INST] ";
  form.close = tekken || v3 || v7 ? "[/INST]" : " [/INST]";
  form.answer_open = tekken ? "" : " ";
  form.answer_close = "</s>";
  form.system_open = v7 ? "[SYSTEM_PROMPT] " : "";
  form.system_close = v7 ? "[/SYSTEM_PROMPT]" : "\n\n";
  form.system_before_open = v7;
  return ChatTemplate(std::move(form));
}

bool IsKnownRole(std::string_view role) {
  return role == kSystemRole || role == kUserRole || role == kAssistantRole || role == kToolRole ||
         role == kDeveloperRole;
}

bool ChatTemplate::alternates() const {
  if (file_) return file_->traits().alternates;
  return form_.format == ChatFormat::kLlama2 || form_.format == ChatFormat::kMistral ||
         form_.format == ChatFormat::kGemma;
}

bool ChatTemplate::Takes(std::string_view role, bool in_front) const {
  if (role == kUserRole || role == kAssistantRole) return true;
  if (role == kSystemRole) return in_front || (file_ && file_->traits().takes_late_system);
  if (!file_) return false;
  if (role == kDeveloperRole) return file_->traits().takes_developer;
  return role == kToolRole && file_->traits().takes_tool;
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromName(std::string_view name) {
  for (const NamedFormat& named : kNames) {
    if (named.name != name) continue;
    switch (named.format) {
      case ChatFormat::kOther:
      case ChatFormat::kPlain:
        return Tagged(ChatFormat::kPlain, "", "", "\n", false);
      case ChatFormat::kChatMl:
        return Tagged(ChatFormat::kChatMl, "<|im_start|>", "\n", "<|im_end|>\n", false);
      case ChatFormat::kLlama2:
        return Llama2();
      case ChatFormat::kLlama3:
        return Tagged(ChatFormat::kLlama3, "<|start_header_id|>", "<|end_header_id|>\n\n",
                      "<|eot_id|>", true);
      case ChatFormat::kZephyr:
        return Zephyr("</s>");
      case ChatFormat::kMistral:
        return Mistral("");
      case ChatFormat::kGemma:
        return Tagged(ChatFormat::kGemma, "<start_of_turn>", "\n", "<end_of_turn>\n", true);
      case ChatFormat::kPhi3:
        return Tagged(ChatFormat::kPhi3, "<|", "|>\n", "<|end|>\n", false);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("chat template \"", ToAbsl(name),
                                                 "\" is not known; choose one of ", KnownNames()));
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromText(std::string_view text) {
  if (Contains(text, "<|im_start|>") && !Contains(text, "<|im_sep|>")) return FromName("chatml");
  if (Contains(text, "<|start_header_id|>")) return FromName("llama3");
  if (Contains(text, "<start_of_turn>")) return FromName("gemma");
  if (Contains(text, "<<SYS>>")) return FromName("llama2");
  if (Contains(text, "[INST]")) return Mistral(text);
  if (Contains(text, "<|end|>") && Contains(text, "<|assistant|>")) return FromName("phi3");
  if (Contains(text, "<|user|>") && Contains(text, "<|endoftext|>")) return Zephyr("<|endoftext|>");
  if (Contains(text, "<|user|>") && (Contains(text, "eos_token") || Contains(text, "</s>"))) {
    return Zephyr("</s>");
  }
  return absl::UnimplementedError(absl::StrCat(
      "the file's chat template is of no known format; choose one by --chat-template NAME or "
      "config model.chat_template: ",
      KnownNames()));
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromFile(const GgufFile& file, std::string_view name) {
  if (!name.empty()) return FromName(name);
  constexpr std::string_view kKey = "tokenizer.chat_template";
  WITHY_ASSIGN_OR_RETURN(const std::string_view text, file.GetStringOr(kKey, ""));
  if (text.empty()) return FromVocabulary(file);
  absl::StatusOr<FileTemplate> executed = FileTemplate::FromFile(file);
  absl::StatusOr<ChatTemplate> recognised = FromText(text);
  if (recognised.ok() && recognised->format() == ChatFormat::kZephyr &&
      Contains(text, "eos_token")) {
    const std::string_view eos = NamedToken(file, "tokenizer.ggml.eos_token_id");
    if (!eos.empty()) recognised = Zephyr(std::string(eos));
  }
  if (executed.ok()) {
    ChatTemplate chat =
        recognised.ok() ? *std::move(recognised) : Tagged(ChatFormat::kOther, "", "", "\n", false);
    chat.file_ = *std::move(executed);
    Fnv1a hash;
    hash.Add(text);
    hash.Add(file.GetStringOr("tokenizer.chat_template.tool_use", "").value_or(""));
    chat.fingerprint_ = hash.value();
    return chat;
  }
  const std::string why(executed.status().message());
  if (!recognised.ok()) {
    return absl::UnimplementedError(absl::StrCat(file.path(),
                                                 ": the file's chat template cannot be executed (",
                                                 why, "), and ", recognised.status().message()));
  }
  recognised->note_ =
      absl::StrCat("the file's chat template cannot be executed (", why,
                   "): chats are rendered as ", ToAbsl(recognised->name()), " instead");
  return recognised;
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromVocabulary(const GgufFile& file) {
  const VocabularyFormat found = FindVocabularyFormat(file);
  WITHY_ASSIGN_OR_RETURN(ChatTemplate chat, FromName(found.name.empty() ? "plain" : found.name));
  if (found.name.empty()) {
    chat.doubtful_ = true;
    chat.note_ = absl::StrCat(
        "the file has no chat template, and its vocabulary tells none: chats are rendered as plain "
        "text, for which the model was probably not trained; set model.chat_template "
        "(--chat-template) to its format, one of ",
        KnownNames(), ", or take a file with tokenizer.chat_template");
    return chat;
  }
  if (chat.format() == ChatFormat::kMistral) chat = Mistral(found.sample);
  const std::string_view eos = NamedToken(file, "tokenizer.ggml.eos_token_id");
  if (chat.format() == ChatFormat::kZephyr && !eos.empty()) chat = Zephyr(std::string(eos));
  chat.note_ = absl::StrCat("the file has no chat template: its vocabulary has the tokens of ",
                            ToAbsl(found.name), " (", ToAbsl(found.tokens),
                            "), and chats are rendered in that format; model.chat_template "
                            "(--chat-template) chooses another");
  return chat;
}

std::string_view ChatTemplate::name() const {
  for (const NamedFormat& named : kNames) {
    if (named.format == form_.format) return named.name;
  }
  return "other";
}

}  // namespace withy::engine

// Renders messages as prompt pieces.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/chat/template.h"
#include "engine/chat/thoughts.h"
#include "engine/chat/tool_calls.h"

namespace withy::engine {
namespace {

// The range of `text` without leading and trailing white space.
ByteSpan Trimmed(const std::string& text) {
  constexpr char kSpaces[] = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return {0, 0};
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(text.find_last_not_of(kSpaces) + 1)};
}

}  // namespace

// Collects pieces. Consecutive markup is joined; empty pieces are dropped.
class ChatTemplate::Builder {
 public:
  explicit Builder(bool trims) : trims_(trims) {}

  void Markup(const std::string& text) {
    if (text.empty()) return;
    if (!chat_.pieces.empty() && chat_.pieces.back().special) {
      chat_.pieces.back().text += text;
    } else {
      chat_.pieces.push_back({.text = text, .special = true});
    }
  }

  void Content(std::span<const ChatMessage> messages, size_t index) {
    const ChatMessage& message = messages[index];
    const ByteSpan kept = trims_ ? Trimmed(message.content)
                                 : ByteSpan{0, static_cast<uint32_t>(message.content.size())};
    if (kept.begin == kept.end) return;
    ChatPiece piece;
    piece.text = message.content.substr(kept.begin, kept.end - kept.begin);
    piece.message = static_cast<int32_t>(index);
    piece.offset = kept.begin;
    for (const ByteSpan& span : message.fixed_spans) {
      const uint32_t begin = std::clamp(span.begin, kept.begin, kept.end);
      const uint32_t end = std::clamp(span.end, kept.begin, kept.end);
      if (begin < end) piece.fixed_spans.push_back({begin - kept.begin, end - kept.begin});
    }
    chat_.pieces.push_back(std::move(piece));
  }

  RenderedChat Take() { return std::move(chat_); }

 private:
  bool trims_;
  RenderedChat chat_;
};

absl::StatusOr<RenderedChat> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                  const ChatOptions& options) const {
  const bool add_generation_prompt = options.add_generation_prompt;
  if (add_generation_prompt && !messages.empty() && messages.back().role == kAssistantRole &&
      messages.back().tool_calls_json.empty()) {
    return RenderContinued(messages, options);
  }
  WITHY_RETURN_IF_ERROR(CheckOptions(options));
  WITHY_RETURN_IF_ERROR(Check(messages, add_generation_prompt));
  if (file_) return file_->Render(messages, options);
  Builder builder(form_.trims);
  if (form_.format == ChatFormat::kLlama2 || form_.format == ChatFormat::kMistral) {
    RenderInstructions(messages, builder);
  } else {
    RenderTagged(messages, add_generation_prompt, builder);
  }
  return builder.Take();
}

// As far as the template shows the last message's text: what closes its turn is left out.
absl::StatusOr<RenderedChat> ChatTemplate::RenderContinued(std::span<const ChatMessage> messages,
                                                           ChatOptions options) const {
  const size_t last = messages.size() - 1;
  // Nothing of it is there yet.
  if (messages[last].content.empty()) return Render(messages.first(last), options);
  options.add_generation_prompt = false;
  WITHY_ASSIGN_OR_RETURN(RenderedChat chat, Render(messages, options));
  const auto end = std::find_if(
      chat.pieces.rbegin(), chat.pieces.rend(),
      [&](const ChatPiece& piece) { return piece.message == static_cast<int32_t>(last); });
  if (end == chat.pieces.rend()) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages[", last,
                     "]: the model's chat template shows nothing of this answer, which therefore "
                     "cannot go on: end with a user's message"));
  }
  chat.pieces.erase(end.base(), chat.pieces.end());
  return chat;
}

std::string ChatTemplate::WhyNoTools() const {
  if (executes_file()) {
    return "the model's chat template shows none: use a model whose template takes tools";
  }
  return absl::StrCat("the chat format ", ToAbsl(name()),
                      note_.empty() ? " is built in and shows none"
                                    : " stands for the file's template and shows none",
                      ": use a model whose file carries a template with tools, and leave "
                      "model.chat_template empty");
}

absl::Status ChatTemplate::CheckOptions(const ChatOptions& options) const {
  if (!IsEmptyJson(options.tools_json) && !takes_tools()) {
    return absl::InvalidArgumentError(absl::StrCat("tools: ", WhyNoTools()));
  }
  if (!IsEmptyJson(options.arguments_json) && !executes_file()) {
    return absl::InvalidArgumentError(
        absl::StrCat("template arguments: the chat format ", ToAbsl(name()),
                     " is built in and takes none: leave them out, or use a model whose file's "
                     "template is executed"));
  }
  return absl::OkStatus();
}

absl::Status ChatTemplate::Check(std::span<const ChatMessage> messages,
                                 bool add_generation_prompt) const {
  if (messages.empty())
    return absl::InvalidArgumentError("messages: empty; at least one is needed");
  const auto error = [](size_t index, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("messages[", index, "]: ", what));
  };
  std::string expected = kUserRole;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (!IsKnownRole(message.role)) {
      return error(i, absl::StrCat("role \"", message.role,
                                   "\" is not system, developer, user, assistant or tool"));
    }
    if (message.content.size() > UINT32_MAX) return error(i, "content is longer than 4 GiB");
    if (!Takes(message.role, i == 0)) {
      const bool late = i != 0 && Takes(message.role, true);
      return error(i, late ? absl::StrCat("a ", message.role, " message must be the first one")
                           : absl::StrCat("role \"", message.role,
                                          "\" is not taken by the model's chat template: use "
                                          "system or user"));
    }
    if (!message.tool_calls_json.empty() && !takes_calls()) {
      return error(i, absl::StrCat("tool_calls: ", WhyNoTools()));
    }
    for (const ByteSpan& span : message.fixed_spans) {
      if (span.begin > span.end || span.end > message.content.size()) {
        return error(
            i, absl::StrCat("fixed span [", span.begin, ", ", span.end,
                            ") is outside its content of ", message.content.size(), " bytes"));
      }
    }
    // A file's template says itself which order it takes.
    if (file_ || !alternates() || message.role == kSystemRole) continue;
    if (message.role != expected) {
      return error(i, absl::StrCat("the template needs user and assistant in turns: expected ",
                                   expected, ", found ", message.role));
    }
    expected = message.role == kUserRole ? kAssistantRole : kUserRole;
  }
  if (!file_ && alternates() && add_generation_prompt && expected != kAssistantRole) {
    return error(messages.size() - 1,
                 "the last message must be the user's for an answer to follow");
  }
  return absl::OkStatus();
}

void ChatTemplate::RenderTagged(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                Builder& builder) const {
  const bool plain = form_.format == ChatFormat::kPlain;
  const bool gemma = form_.format == ChatFormat::kGemma;
  const auto role_name = [&](const std::string& role) -> std::string {
    if (plain) return "";
    if (!gemma) return role;
    return role == kAssistantRole ? "model" : kUserRole;
  };
  bool open = false;  // Gemma: a system message has opened the user's turn
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (!open) builder.Markup(form_.before_role + role_name(role) + form_.after_role);
    builder.Content(messages, i);
    open = gemma && role == kSystemRole;
    builder.Markup(open ? "\n\n" : form_.turn_end);
  }
  if (add_generation_prompt) {
    builder.Markup(form_.before_role + role_name(kAssistantRole) + form_.after_role);
  }
}

void ChatTemplate::RenderInstructions(std::span<const ChatMessage> messages,
                                      Builder& builder) const {
  bool opened = false;  // the system message is inside the first instruction
  bool first = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == kSystemRole) {
      if (!form_.system_before_open) builder.Markup(form_.open);
      opened = !form_.system_before_open;
      builder.Markup(form_.system_open);
      builder.Content(messages, i);
      builder.Markup(form_.system_close);
    } else if (role == kUserRole) {
      if (!opened) builder.Markup(first ? form_.open : form_.open_again);
      opened = first = false;
      builder.Content(messages, i);
      builder.Markup(form_.close);
    } else {
      builder.Markup(form_.answer_open);
      builder.Content(messages, i);
      builder.Markup(form_.answer_close);
    }
  }
}

std::vector<TextPiece> RenderedChat::TextPieces() const {
  std::vector<TextPiece> texts;
  texts.reserve(pieces.size());
  for (const ChatPiece& piece : pieces) texts.push_back({piece.text, piece.special});
  return texts;
}

std::string RenderedChat::Text() const {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

bool RenderedChat::OpensThought(bool continues) const {
  if (continues && !pieces.empty() && !pieces.back().special) {
    const std::string& text = pieces.back().text;
    const size_t begin = text.rfind(kThoughtBegin), end = text.rfind(kThoughtEnd);
    return begin != std::string::npos && (end == std::string::npos || end < begin);
  }
  std::string markup;
  for (auto piece = pieces.rbegin(); piece != pieces.rend() && piece->special; ++piece) {
    markup.insert(0, piece->text);
  }
  markup.resize(Trimmed(markup).end);
  return markup.ends_with(kThoughtBegin);
}

void RenderedChat::DropFront(std::string_view text) {
  if (text.empty() || pieces.empty()) return;
  ChatPiece& first = pieces.front();
  if (!first.special || !first.text.starts_with(text)) return;
  first.text.erase(0, text.size());
  if (first.text.empty()) pieces.erase(pieces.begin());
}

}  // namespace withy::engine

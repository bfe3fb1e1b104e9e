// Chat templates: renders role/content messages as prompt pieces in the model's training format.
// Neighbour: tokenizer/ encodes the pieces. No template language is interpreted: the file's
// template text selects a built-in format.
//
//   WITHY_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::FromFile(file, config.chat_template));
//   WITHY_ASSIGN_OR_RETURN(RenderedChat prompt, chat.Render(messages, true));
//   const bool add_bos = tokenizer.wants_bos();
//   Encoding encoding = tokenizer.EncodePieces(prompt.TextPieces(), {.add_bos = add_bos});
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/text.h"

namespace withy::engine {

enum class ChatFormat {
  kPlain,    // contents one after the other, each followed by a newline
  kChatMl,   // <|im_start|>role\n…<|im_end|>\n
  kLlama2,   // [INST] <<SYS>>…<</SYS>> … [/INST] … </s>
  kLlama3,   // <|start_header_id|>role<|end_header_id|>\n\n…<|eot_id|>
  kZephyr,   // <|role|>\n…</s>\n  (or <|endoftext|>, depending on the file)
  kMistral,  // [INST] … [/INST] …</s>, with the file's spacing
  kGemma,    // <start_of_turn>role\n…<end_of_turn>\n
  kPhi3,     // <|role|>\n…<|end|>\n
};

inline constexpr char kSystemRole[] = "system";
inline constexpr char kUserRole[] = "user";
inline constexpr char kAssistantRole[] = "assistant";

struct ChatMessage {
  std::string role;                   // one of the three above
  std::string content;                // UTF-8
  std::vector<ByteSpan> fixed_spans;  // byte ranges of `content` that prompt pruning must keep
};

// One piece of a rendered prompt: template markup (`special`: control tokens are recognised in it)
// or a message's text.
struct ChatPiece {
  std::string text;
  bool special = false;
  int32_t message = -1;               // index of the message with this content; -1 for markup
  std::vector<ByteSpan> fixed_spans;  // in `text`, copied from the message
};

struct RenderedChat {
  std::vector<ChatPiece> pieces;
  std::vector<TextPiece> TextPieces() const;  // views into `pieces`
  std::string Text() const;                   // all pieces joined
};

// Immutable.
class ChatTemplate {
 public:
  // By name: plain, chatml, llama2, llama3, zephyr, mistral, gemma, phi3.
  // Errors: InvalidArgument listing the names.
  static absl::StatusOr<ChatTemplate> FromName(std::string_view name);
  // Recognises the text of tokenizer.chat_template. Errors: Unimplemented naming the options that
  // select a template (--chat-template NAME, config model.chat_template).
  static absl::StatusOr<ChatTemplate> FromText(std::string_view text);
  // `name` if not empty, else the file's template text, else plain.
  static absl::StatusOr<ChatTemplate> FromFile(const GgufFile& file, std::string_view name = "");

  ChatFormat format() const { return form_.format; }
  std::string_view name() const;
  // Whether user and assistant must alternate.
  bool alternates() const {
    return form_.format == ChatFormat::kLlama2 || form_.format == ChatFormat::kMistral ||
           form_.format == ChatFormat::kGemma;
  }

  // Renders the prompt for these messages, without BOS (the tokenizer adds it). With
  // `add_generation_prompt` it ends where the assistant's answer begins. The prompt for
  // messages[0..n] that ends in an assistant's message begins with the prompt for messages[0..n-1]
  // with generation prompt. Errors: InvalidArgument for no messages; InvalidArgument naming the
  // message for an unknown role, a fixed span outside its content, a system message that is not
  // first, or (Llama 2, Mistral, Gemma) two user or two assistant messages in a row.
  absl::StatusOr<RenderedChat> Render(std::span<const ChatMessage> messages,
                                      bool add_generation_prompt) const;

 private:
  // Markup around messages. Tagged formats: before_role ROLE after_role content turn_end.
  // Instruction formats: open [system] content close, then answer_open content answer_close.
  struct Form {
    ChatFormat format = ChatFormat::kPlain;
    bool trims = false;  // strip white space at both ends of contents
    std::string before_role, after_role, turn_end;
    std::string open, open_again, system_open, system_close, close, answer_open, answer_close;
    bool system_before_open = false;
  };

  explicit ChatTemplate(Form form) : form_(std::move(form)) {}
  static ChatTemplate Tagged(ChatFormat format, std::string before_role, std::string after_role,
                             std::string turn_end, bool trims);
  static ChatTemplate Llama2();
  static ChatTemplate Mistral(std::string_view text);
  static ChatTemplate Zephyr(std::string turn_end);

  class Builder;
  absl::Status Check(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
  void RenderTagged(std::span<const ChatMessage> messages, bool add_generation_prompt,
                    Builder& builder) const;
  void RenderInstructions(std::span<const ChatMessage> messages, Builder& builder) const;

  Form form_;
};

}  // namespace withy::engine

// Chat templates: renders messages as prompt pieces in the model's training format. The file's own
// template is executed (file_template.h); where that fails, its text selects a built-in format.
// Neighbour: tokenizer/ encodes the pieces.
//
//   WITHY_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::FromFile(file, config.chat_template));
//   WITHY_ASSIGN_OR_RETURN(RenderedChat prompt, chat.Render(messages, true));
//   const bool add_bos = tokenizer.wants_bos();
//   Encoding encoding = tokenizer.EncodePieces(prompt.TextPieces(), {.add_bos = add_bos});
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/chat/file_template.h"
#include "engine/chat/message.h"
#include "engine/gguf/reader.h"

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
  kOther,    // a file's own that is none of these
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
  // `name` if not empty, else the file's template, executed. A template that cannot be executed is
  // replaced by the format that its text is recognised as, one that is missing by the format that
  // the vocabulary's control tokens tell (vocabulary_format.h), else by plain, each with a note().
  // Errors: as above, with the reason why the template is not executed.
  static absl::StatusOr<ChatTemplate> FromFile(const GgufFile& file, std::string_view name = "");

  ChatFormat format() const { return form_.format; }
  std::string_view name() const;
  // Whether the file's own template is executed.
  bool executes_file() const { return file_.has_value(); }
  // That template; null for a built-in format.
  const FileTemplate* file() const { return file_ ? &*file_ : nullptr; }
  // Why no template of the file is executed; empty if one is, or the format was named.
  const std::string& note() const { return note_; }
  // Whether nothing tells the format, so that answers may be worse than the model's.
  bool doubtful() const { return doubtful_; }
  // Different for templates of files with different texts.
  uint64_t fingerprint() const { return fingerprint_; }

  // Whether user and assistant must alternate.
  bool alternates() const;
  // Whether a message with this role may be in front of all others, or behind others.
  bool Takes(std::string_view role, bool in_front) const;
  // Whether it shows the tools that may be called, and what an assistant's message calls.
  bool takes_tools() const { return file_ && file_->traits().takes_tools; }
  bool takes_calls() const { return file_ && file_->traits().takes_calls; }

  // Renders the prompt for these messages. A built-in format has no BOS (the tokenizer adds it); a
  // file's template may begin with it (RenderedChat::DropFront). With `add_generation_prompt` it
  // ends where the assistant's answer begins; where the last message is the assistant's, where that
  // one ends, for it to go on. With a built-in format, the prompt for messages[0..n]
  // that ends in an assistant's message begins with the prompt for messages[0..n-1] with generation
  // prompt; a file's template may write earlier turns anew. Errors: InvalidArgument for no
  // messages; InvalidArgument naming the message for a role that is unknown or not taken at its
  // place, a fixed span outside its content, or two user or two assistant messages in a row where
  // alternates(); InvalidArgument with the words of a file's template that refuses the messages;
  // InvalidArgument with the remedy for tools, calls or arguments that the template does not take.
  absl::StatusOr<RenderedChat> Render(std::span<const ChatMessage> messages,
                                      const ChatOptions& options) const;
  absl::StatusOr<RenderedChat> Render(std::span<const ChatMessage> messages,
                                      bool add_generation_prompt) const {
    return Render(messages, ChatOptions{.add_generation_prompt = add_generation_prompt});
  }

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
  // For a file without a template.
  static absl::StatusOr<ChatTemplate> FromVocabulary(const GgufFile& file);

  class Builder;
  absl::StatusOr<RenderedChat> RenderContinued(std::span<const ChatMessage> messages,
                                               ChatOptions options) const;
  absl::Status Check(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
  absl::Status CheckOptions(const ChatOptions& options) const;
  // Why it shows no tools, and the remedy.
  std::string WhyNoTools() const;
  void RenderTagged(std::span<const ChatMessage> messages, bool add_generation_prompt,
                    Builder& builder) const;
  void RenderInstructions(std::span<const ChatMessage> messages, Builder& builder) const;

  Form form_;
  std::optional<FileTemplate> file_;
  std::string note_;
  bool doubtful_ = false;
  uint64_t fingerprint_ = 0;
};

}  // namespace withy::engine

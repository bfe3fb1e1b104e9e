// The template that a model file carries (tokenizer.chat_template, and .tool_use beside it),
// executed. Neighbours: engine/jinja/ runs it; template.h falls back to a recognised format where
// it cannot be run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/chat/message.h"
#include "engine/gguf/reader.h"
#include "engine/jinja/template.h"

namespace withy::engine {

// The text of the token whose id is under `key` ("tokenizer.ggml.eos_token_id"); "" if the file has
// none. Valid as long as the file.
std::string_view NamedToken(const GgufFile& file, std::string_view key);

// What a template does with messages, found out by rendering short chats.
struct TemplateTraits {
  bool takes_system = false;       // a system message in front
  bool takes_late_system = false;  // one behind other messages
  bool takes_tool = false;         // a tool's result
  bool takes_tools = false;        // shows the tools that may be called
  bool takes_calls = false;        // shows what an assistant's message calls
  bool takes_developer = false;    // a developer's message in front
  bool alternates = false;         // refuses two messages of a user in a row
};

// Immutable, thread-safe, cheap to copy.
//
// Which bytes of a prompt are markup is known for each byte: the interpreter keeps the source of
// every byte through all operations (engine/jinja/text.h). Bytes of a message's content, or of
// tools, are never markup, even where a template trims, cuts, replaces or joins them. A template's
// own bytes are, and so is a role's name, which is one of the five known ones. Marking contents by
// rare characters instead would change what templates see (lengths, comparisons, trimming).
class FileTemplate {
 public:
  // Errors: of jinja::Template::Parse; UNIMPLEMENTED if the template does not show a user's
  // message.
  static absl::StatusOr<FileTemplate> FromFile(const GgufFile& file);
  // `bos`, `eos`: texts of those tokens, "" for none. `tool_use`: the variant for chats with tools,
  // or "".
  static absl::StatusOr<FileTemplate> FromText(std::string_view text, std::string_view tool_use,
                                               std::string_view bos, std::string_view eos);

  const TemplateTraits& traits() const { return traits_; }

  // Errors: INVALID_ARGUMENT for messages that the template refuses, with its words, or that it
  // fails on, with the line; for tools or arguments that are no JSON, and arguments with names that
  // the template has from elsewhere.
  absl::StatusOr<RenderedChat> Render(std::span<const ChatMessage> messages,
                                      const ChatOptions& options) const;

 private:
  FileTemplate(jinja::Template main, std::optional<jinja::Template> tool_use)
      : main_(std::move(main)), tool_use_(std::move(tool_use)) {}
  void FindTraits();
  bool Shows(std::span<const ChatMessage> messages, int32_t index,
             std::string_view tools_json = "") const;
  // Whether `text` is there; with tools, if `tools_json` has any.
  bool ShowsText(std::span<const ChatMessage> messages, std::string_view tools_json,
                 std::string_view text) const;
  absl::StatusOr<jinja::Text> Run(std::span<const ChatMessage> messages,
                                  const ChatOptions& options) const;

  jinja::Template main_;
  std::optional<jinja::Template> tool_use_;
  std::string bos_;
  std::string eos_;
  TemplateTraits traits_;
  bool main_takes_calls_ = true;  // until it is known
};

}  // namespace withy::engine

// Messages and rendered prompts: what chat templates take and give. Neighbour: template.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/text.h"

namespace withy::engine {

inline constexpr char kSystemRole[] = "system";
inline constexpr char kUserRole[] = "user";
inline constexpr char kAssistantRole[] = "assistant";
inline constexpr char kToolRole[] = "tool";            // a tool's result
inline constexpr char kDeveloperRole[] = "developer";  // instructions of the app's developer

// Whether `role` is one of the five above.
bool IsKnownRole(std::string_view role);

struct ChatMessage {
  std::string role;                        // one of the five above
  std::string content;                     // UTF-8
  std::vector<ByteSpan> fixed_spans = {};  // byte ranges of `content` that pruning must keep
  // For templates of files only. Of an assistant: JSON list of its calls, in OpenAI's form
  // ([{"id", "type": "function", "function": {"name", "arguments"}}]); "" for none.
  std::string tool_calls_json = {};
  // Of a tool's result: the tool's name, and the id of the call that it answers.
  std::string name = {};
  std::string tool_call_id = {};
};

struct ChatOptions {
  bool add_generation_prompt = false;
  // JSON list of the tools that may be called, in OpenAI's form; "" or "[]" for none.
  std::string_view tools_json = {};
  // JSON object of variables that a file's template sees beside its own, such as
  // {"enable_thinking": false}; "" or "{}" for none.
  std::string_view arguments_json = {};
  // What the template tells as the present time.
  int64_t unix_s = 0;
};

// One piece of a rendered prompt: template markup (`special`: control tokens are recognised in it),
// a message's text, or other text from outside (a tool's description).
struct ChatPiece {
  std::string text;
  bool special = false;
  int32_t message = -1;  // index of the message that the text is from; -1 for other pieces
  std::vector<ByteSpan> fixed_spans = {};  // in `text`, copied from the message
  uint32_t offset = 0;                     // of `text` in the message's content
};

struct RenderedChat {
  std::vector<ChatPiece> pieces;
  std::vector<TextPiece> TextPieces() const;  // views into `pieces`
  std::string Text() const;                   // all pieces joined
  // Whether the answer behind it begins in a thought: the markup at its end has <think> last, or,
  // if it ends in an answer that is to go on (`continues`), a thought of that one has no end.
  bool OpensThought(bool continues) const;
  // Removes `text` (the BOS, if the tokenizer adds it) from the front, if markup begins with it.
  void DropFront(std::string_view text);
};

}  // namespace withy::engine

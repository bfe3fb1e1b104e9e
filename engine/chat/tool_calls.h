// Tools that an answer calls: reads calls out of an answer's text, in the forms in which published
// models write them, and says where the text of a stream may still become a call. Pure. Neighbours:
// call_forms/ has each form in a file of its own; file_template.h shows tools and calls to a model;
// session/ knows which tools a call has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace withy::engine {

struct ToolCall {
  std::string id;              // unique within the conversation
  std::string name;            // of the function
  std::string arguments_json;  // a JSON object, as the model wrote it

  bool operator==(const ToolCall&) const = default;
};

// Calls that are read out of one answer at most; what is behind them stays text.
inline constexpr size_t kMaxToolCalls = 64;

// A JSON list in OpenAI's form, with arguments as JSON in a string: [{"id", "type": "function",
// "function": {"name", "arguments"}}]. "" for none.
std::string ToolCallsJson(std::span<const ToolCall> calls);

// Sets the ids: nine letters and digits, as the strictest templates want them, which depend only on
// `call_id` and the place in the list.
void GiveIds(uint64_t call_id, std::vector<ToolCall>* calls);

// Whether this JSON says nothing: "", "[]" or "{}".
bool IsEmptyJson(std::string_view json);

// An answer, taken apart.
struct AnswerParts {
  // What is outside the calls, without the white space next to them. All of the answer if it calls
  // nothing.
  std::string text;
  std::vector<ToolCall> calls;  // without ids
};

// Reads the calls of answers. Immutable.
//
// A call begins with a marker, and these forms are known: <tool_call> with JSON or with tags for
// function and parameters (Hermes, Qwen), <function=NAME> (Llama 3.1, Functionary), [TOOL_CALLS]
// (Mistral, old and new), <|python_tag|> (Llama 3), <|tool_call|> (Granite, Phi-4),
// <|START_ACTION|> (Command R), DeepSeek's markers. An answer that is JSON and nothing else is a
// call if it names a known tool (Llama 3.2). What does not have its form whole stays text, and so
// does everything up to the end of a reasoning model's thoughts (</think>).
class ToolCallParser {
 public:
  // `tools_json`: the tools that may be called, as in ChatOptions; what cannot be read is ignored.
  explicit ToolCallParser(std::string_view tools_json);
  // Knows names alone.
  explicit ToolCallParser(std::span<const std::string> names);

  AnswerParts Parse(std::string_view answer) const;

  bool Knows(std::string_view name) const { return tools_.contains(name); }
  // Whether the tool's description says that this parameter is a string.
  bool IsText(std::string_view tool, std::string_view parameter) const;

 private:
  // By name: its parameters, and whether they are strings.
  std::map<std::string, std::map<std::string, bool, std::less<>>, std::less<>> tools_;
};

// Texts that calls are written with. Where a vocabulary has them as control tokens, an answer that
// may call tools must show them.
std::span<const std::string_view> CallMarkers();

// What the calls of each known form with markers begin with. None begins with another.
std::vector<std::string_view> CallOpenings();

// How many bytes of an answer, of which `answer` has come so far and `shown` bytes were shown, may
// be shown: none that may belong to a call, nor white space before it. Whatever Parse makes of the
// whole answer then, its text begins with the bytes that were shown.
size_t ShownBeforeCalls(std::string_view answer, size_t shown);

}  // namespace withy::engine

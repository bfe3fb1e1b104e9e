// JSON inside of an answer: where a value ends, and the call that an object is. Arguments stay as
// the model wrote them. Pure. Neighbour: reader.h.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "engine/chat/tool_calls.h"

namespace withy::engine {

inline constexpr std::string_view kJsonSpaces = " \t\n\r";

// Index of the first byte of `text` from `at` on that is no white space; text.size(): there is
// none.
size_t SkipSpaces(std::string_view text, size_t at);

// Length of `text` up to `end`, without white space at its end.
size_t TrimmedEnd(std::string_view text, size_t end);

// End of the JSON value that begins at `at`, whose syntax is looked at only as far as that needs;
// npos: it has no end, or nests more than kMaxJsonDepth levels deep.
size_t ValueEnd(std::string_view text, size_t at);

bool IsJson(std::string_view text);

// Bytes that are no UTF-8 are replaced.
std::string DumpJson(const OrderedJson& json);

// The call that `object`, valid JSON, describes: "name" or "tool_name" with "arguments" or
// "parameters"; "function" may hold the name, or name and arguments. None: it describes no call.
std::optional<ToolCall> CallOf(std::string_view object);

// A call with white space around its name. `arguments`: a JSON object, or one in a string; "" and
// null are none. No call if one of the two is none.
std::optional<ToolCall> CallNamed(std::string_view name, std::string_view arguments);

}  // namespace withy::engine

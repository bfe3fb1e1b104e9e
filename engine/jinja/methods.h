// Methods of strings, dicts and lists, as Python has them, as far as they change nothing.
// Neighbour: expressions.cc.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/jinja/interpreter.h"

namespace withy::jinja {

bool HasMethod(const Value& value, std::string_view name);

// Errors: INVALID_ARGUMENT naming the method for wrong arguments, and for methods that would change
// a list or dict.
absl::StatusOr<Value> CallMethod(Interpreter& in, const Value& receiver, std::string_view name,
                                 const Arguments& arguments);

// Operations that filters share with methods. Sources of bytes are kept.
enum class Side { kBoth, kLeft, kRight };
// `characters` null: white space.
Text Stripped(const Text& text, const Text* characters, Side side);
// Each character by `mapping`.
Text MapCharacters(const Text& text, std::string (*mapping)(char32_t));
Text TitleCased(const Text& text, bool capitalize_only);
// At most `limit` replacements; negative: all. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Value> ReplaceWithin(Interpreter& in, const Text& text, const Text& from,
                                    const Text& to, int64_t limit);
std::vector<Value> DictItems(const Dict& dict);

}  // namespace withy::jinja

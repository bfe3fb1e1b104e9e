// Operations on text that methods and filters share. Sources of bytes are kept. Neighbours: text.h,
// characters.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/jinja/interpreter.h"

namespace withy::jinja {

enum class Side { kBoth, kLeft, kRight };
// `characters` null: white space.
Text Stripped(const Text& text, const Text* characters, Side side);
// Each character by `mapping`.
Text MapCharacters(const Text& text, std::string (*mapping)(char32_t));
Text TitleCased(const Text& text, bool capitalize_only);
// At most `limit` replacements; negative: all. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Value> ReplaceWithin(Interpreter& in, const Text& text, const Text& from,
                                    const Text& to, int64_t limit);

}  // namespace withy::jinja

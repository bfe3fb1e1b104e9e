// JSON in and out. Out as Python's json.dumps(ensure_ascii=False) writes it, which is what
// templates show tools to a model with.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/jinja/value.h"

namespace withy::jinja {

struct JsonStyle {
  std::optional<Text> indent;  // a level's; unset: all on one line
  std::optional<Text> item_separator;
  std::optional<Text> key_separator;
  bool sort_keys = false;
};

// Strings keep their sources. Errors: INVALID_ARGUMENT for values without JSON (undefined, …).
absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style);

// All strings of the result, keys included, have `source`. Errors: INVALID_ARGUMENT for what is no
// JSON, is nested deeper than kMaxJsonDepth (base/json.h) or has integers of more than 64 bits.
absl::StatusOr<Value> FromJson(std::string_view json, int32_t source);

}  // namespace withy::jinja

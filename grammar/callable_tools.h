// The tools that an answer is to call, read out of the request's list. Pure. Neighbours:
// format_check.h refuses what cannot be called; compiler.h makes grammars of the schemas.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/sampling/output_grammar.h"

namespace withy::grammar {

// Any JSON object, as a JSON Schema.
inline constexpr char kAnyObject[] = R"({"type": "object"})";

struct CallableTool {
  std::string name;
  std::string schema;  // of its arguments, as PrepareSchema returns it: of an object
};

// Those of `format`, a form of calls, that may be called. A tool with "strict": true has the schema
// of its parameters, another one kAnyObject where that cannot be enforced. Errors:
// INVALID_ARGUMENT naming the field, for no tools, an unknown name, and a strict tool's schema.
absl::StatusOr<std::vector<CallableTool>> CallableTools(const engine::OutputFormat& format);

}  // namespace withy::grammar

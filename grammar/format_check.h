// Checks the form that a request asks its answer to have, before anything is compiled. Pure, and
// needs no vocabulary, so that the orchestrator refuses what no worker could do. Neighbours:
// schema_check.h reads JSON Schemas; compiler.h compiles what passes.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "engine/sampling/output_grammar.h"

namespace withy::grammar {

inline constexpr char kCallsSchemaField[] = "output_format.tool_calls.json_schema";

// Errors, naming field, limit and remedy: INVALID_ARGUMENT for a text that is empty, too long,
// nested too deep or not supported; UNIMPLEMENTED if this program was built without XGrammar.
absl::Status CheckFormat(const engine::OutputFormat& format);

// The bounds of a regular expression: length, nesting, repetitions, and no group but (…) and (?:…).
// Errors: INVALID_ARGUMENT; `field` is named.
absl::Status CheckRegex(std::string_view field, std::string_view regex);

}  // namespace withy::grammar

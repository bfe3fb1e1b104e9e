// Grammars in EBNF, as XGrammar reads them, of the forms of answers. Pure. Neighbours:
// schema_check.h and callable_tools.h prepare schemas; compiler.h compiles what comes out. XGrammar
// throws what it refuses.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/call_text.h"
#include "grammar/callable_tools.h"

namespace withy::grammar {

// XGrammar's grammar of a schema, corrected where it allows what is no JSON, but for its strings of
// bounded length, which counted_strings.h corrects. `schema`: as PrepareSchema returns it. Errors:
// INTERNAL for another version of XGrammar, as below.
absl::StatusOr<std::string> GrammarOfSchema(const std::string& schema);

std::string GrammarOfRegex(const std::string& regex);

// Calls of `tools` in `form`, whose strings are as above: one, or up to kMaxCallsOfMessage where
// the form has several.
absl::StatusOr<std::string> GrammarOfCalls(const std::vector<CallableTool>& tools,
                                           const engine::CallText& form, bool one_call);

}  // namespace withy::grammar

// Grammars in EBNF, as XGrammar reads them, of the forms of answers. Pure. Neighbours:
// schema_check.h and callable_tools.h prepare schemas; compiler.h compiles what comes out. XGrammar
// throws what it refuses.
#pragma once

#include <string>
#include <string_view>
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

struct CallCount {
  bool one_call = false;   // false: up to kMaxCallsOfMessage, where the form has several
  bool free_text = false;  // text may come before the calls, or in their place
};
// Calls of `tools` in `form`, whose strings are as above. `count.free_text` needs OpeningOf(form).
absl::StatusOr<std::string> GrammarOfCalls(const std::vector<CallableTool>& tools,
                                           const engine::CallText& form, const CallCount& count);

// Of the texts of either grammar.
std::string EitherGrammar(const std::string& first, const std::string& second);

// The marker that calls in `form` begin with, and no other text; "": they have none.
std::string_view OpeningOf(const engine::CallText& form);

}  // namespace withy::grammar

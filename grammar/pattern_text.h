// Regular expressions as XGrammar matches them rightly within strings. Pure. Neighbour:
// schema_check.h rewrites the patterns of schemas.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace withy::grammar {

// The same expression without "?" and "{n,}" behind groups, which become "{0,1}" and "{n}(...)*":
// XGrammar 0.2.8 leads these back into a state that a repetition within the group may go on from,
// so that (bx+)? would match "x". None: groups within groups make it too long.
std::optional<std::string> WithExactRepetitions(std::string_view pattern);

}  // namespace withy::grammar

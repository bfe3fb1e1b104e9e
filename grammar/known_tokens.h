// Compiled into XGrammar's compiler (CMakeLists.txt): which tokens a rule accepts is known before
// it tries them byte by byte, which takes most of the time of compiling a grammar.
// Neighbour: counted_strings.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace xgrammar {

class KnownTokens {
 public:
  virtual ~KnownTokens() = default;
  // Indices in `vocabulary`, ascending, of tokens that the rule accepts at its beginning, whatever
  // follows it. `vocabulary`: ids and bytes, as XGrammar sorts them.
  virtual std::vector<int32_t> Accepted(
      const std::string& rule,
      const std::vector<std::pair<int32_t, std::string>>& vocabulary) const = 0;
};

// Of what this thread compiles; null: nothing is known.
inline constinit thread_local const KnownTokens* known_tokens = nullptr;

}  // namespace xgrammar

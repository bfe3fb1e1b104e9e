// Strings of bounded length in XGrammar's grammars of schemas, written so that the masks of all
// their states are made when the grammar is compiled. Where a character is a rule that is repeated,
// as XGrammar writes them, what follows a character is known only when a mask is needed, and nearly
// every token is tried then: 0.7 s for 128,000 tokens. Neighbours: grammar_text.h calls it;
// known_tokens.h is how the compiler asks.
//
// counted_string_LO_HI is the rest of a string that has at least LO and at most HI characters more
// (HI "any": no limit), with its closing quote. Strings share these rules. Where LO or HI is more
// than kUnrolledCharacters, kBlockCharacters of any kind come first, counted_block_N, one rule for
// each that is left. What is behind them is not looked at when a mask is made: every token that may
// come is allowed, too, by the rule beside the block, of a string of HI that ends soon, or of LO
// that does not end, counted_prefix_N.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/known_tokens.h"

namespace withy::grammar {

inline constexpr int32_t kUnrolledCharacters = 256;
inline constexpr int32_t kBlockCharacters = 128;
// Of all strings of a grammar; what does not fit stays as it is. Any one string fits. Two rules,
// for a character and for what follows a backslash, take 3.5 ms of a server's processor and 20 KB
// for 128,000 tokens, so that these take 3.5 s and 20 MB at most; a string of up to 64 characters
// takes 0.23 s and 1.3 MB. XGrammar's compiler keeps them for the next grammars.
inline constexpr size_t kMostCountedRules = 2000;

// `grammar`: XGrammar's of a schema. The characters of its strings of bounded length become those
// of JSON, where a string stays repeated, too. `longest_token`: in characters; above
// kUnrolledCharacters - kBlockCharacters, strings that need blocks stay repeated.
std::string WithCountedStrings(int32_t longest_token, std::string grammar);

// What follows a backslash in a JSON string, with pairs of surrogates only: many parsers refuse a
// single one. As lines of a grammar whose names begin with `name`.
std::string EscapeRules(std::string_view name);

// A string without limits, behind its first quote: the lines of rules `name` and what follows its
// backslashes, `name`_escaped.
std::string StringRules(std::string_view name);

// Characters in the token if it is a part of a JSON string without quotes and backslashes; 0 if
// not.
int32_t StringCharacters(std::string_view token);

// Which tokens the rules above accept. For one thread; the vocabularies that it is asked of live as
// long as it.
class StringTokens final : public xgrammar::KnownTokens {
 public:
  std::vector<int32_t> Accepted(
      const std::string& rule,
      const std::vector<std::pair<int32_t, std::string>>& vocabulary) const override;

 private:
  // By index in the vocabulary: how many characters of a string it is, at the beginning of one and
  // behind a backslash, which is counted, too; 0: something else.
  struct Counts {
    int32_t plain = 0;
    int32_t escaped = 0;
  };
  mutable const void* counted_ = nullptr;  // the vocabulary
  mutable std::vector<Counts> counts_;
};

}  // namespace withy::grammar

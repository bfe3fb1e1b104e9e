#include "grammar/grammar_text.h"

#include <xgrammar/xgrammar.h>

#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/chat/tool_calls.h"
#include "grammar/counted_strings.h"

namespace withy::grammar {
namespace {

// Exponents of numbers that a double has.
constexpr char kExponentRule[] =
    R"(basic_number_5 ::= ("" | ([eE] basic_number_4 basic_number_digits{1, 2})))";
// Characters of strings as XGrammar writes them, and as they are in JSON: all have halves of
// surrogate pairs.
constexpr char kCharacters[] = R"([^\0-\x1f\"\\\r\n)";
constexpr char kJsonCharacters[] = R"([^\0-\x1f\"\\\ud800-\udfff)";

// XGrammar writes characters as \xHH and reads as many digits as follow: \u00HH has four.
std::string WithLongEscapes(std::string_view grammar) {
  std::string text;
  for (size_t at = 0; at < grammar.size(); ++at) {
    text += grammar[at];
    if (grammar[at] != '\\' || at + 1 == grammar.size()) continue;
    ++at;
    if (grammar[at] == 'x') {
      text += "u00";
    } else {
      text += grammar[at];
    }
  }
  return text;
}

// Replaces the line of `rule`.
absl::Status ReplaceRule(std::string_view rule, std::string_view line, std::string* grammar) {
  const size_t begin = grammar->find(std::string(rule) + " ::= ");
  if (begin == std::string::npos) {
    return absl::InternalError(
        absl::StrCat("XGrammar's grammars have no rule ", ToAbsl(rule), ": it is another version"));
  }
  grammar->replace(begin, grammar->find('\n', begin) - begin, line);
  return absl::OkStatus();
}

// As a string of EBNF; an id's place is letters and digits.
std::string Literal(std::string_view text) {
  std::string literal = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        literal += '\\';
        literal += c;
        break;
      case '\n':
        literal += "\\n";
        break;
      case '\r':
        literal += "\\r";
        break;
      case '\t':
        literal += "\\t";
        break;
      case engine::CallText::kCallId:
        absl::StrAppend(&literal, "\" [0-9A-Za-z]{", engine::CallText::kCallIdCharacters, "} \"");
        break;
      default:
        literal += c;
    }
  }
  return literal + "\"";
}

// Text up to `opening`, behind which come `calls`. A thought may speak of calls: they come behind
// it. What other forms begin with is not written, because what follows would be read as a call.
std::string FreeTextRules(std::string_view opening) {
  std::string others;
  for (const std::string_view other : engine::CallOpenings()) {
    if (other == opening) continue;
    absl::StrAppend(&others, others.empty() ? "" : ", ", Literal(other));
  }
  return absl::StrCat("text ::= TagDispatch((", Literal(opening),
                      ", calls), loop_after_dispatch=false, excludes=(", others,
                      "))\nthought ::= TagDispatch((\"</think>\", text), "
                      "loop_after_dispatch=false)\n"
                      "root ::= text | \"<think>\" thought\n");
}

}  // namespace

absl::StatusOr<std::string> GrammarOfSchema(const std::string& schema) {
  std::string grammar = xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/false,
                                                          /*indent=*/std::nullopt,
                                                          /*separators=*/std::nullopt,
                                                          /*strict_mode=*/false)
                            .ToString();
  WITHY_RETURN_IF_ERROR(ReplaceRule("basic_escape", EscapeRules("basic_escape"), &grammar));
  WITHY_RETURN_IF_ERROR(ReplaceRule("basic_string_sub", StringRules("basic_string_sub"), &grammar));
  WITHY_RETURN_IF_ERROR(ReplaceRule("basic_number_5", kExponentRule, &grammar));
  return WithLongEscapes(absl::StrReplaceAll(grammar, {{kCharacters, kJsonCharacters}}));
}

std::string GrammarOfRegex(const std::string& regex) {
  return WithLongEscapes(xgrammar::Grammar::FromRegex(regex).ToString());
}

absl::StatusOr<std::string> GrammarOfCalls(const std::vector<CallableTool>& tools,
                                           const engine::CallText& form, const CallCount& count) {
  std::map<std::string, std::string> names;  // of the tools with each schema, as alternatives
  for (const CallableTool& tool : tools) {
    std::string& alternatives = names[tool.schema];
    absl::StrAppend(&alternatives, alternatives.empty() ? "" : " | ", Literal(tool.name));
  }
  std::vector<xgrammar::Grammar> calls;
  for (const auto& [schema, alternatives] : names) {
    WITHY_ASSIGN_OR_RETURN(const std::string arguments, GrammarOfSchema(schema));
    const std::string head = absl::StrCat("root ::= (", alternatives, ") ", Literal(form.middle));
    calls.push_back(xgrammar::Grammar::Concat(
        {xgrammar::Grammar::FromEBNF(head), xgrammar::Grammar::FromEBNF(arguments)}));
  }
  std::string grammar = WithLongEscapes(xgrammar::Grammar::Union(calls).ToString());
  constexpr std::string_view kRoot = "root ::= ";
  const size_t root = grammar.find(kRoot);
  if (root != 0 && (root == std::string::npos || grammar[root - 1] != '\n')) {
    return absl::InternalError("XGrammar's grammars have no rule root: it is another version");
  }
  grammar.replace(root, kRoot.size(), "one_call ::= ");
  const std::string_view opening = count.free_text ? OpeningOf(form) : std::string_view();
  std::string calls_rule =
      absl::StrCat(Literal(std::string_view(form.begin).substr(opening.size())), " one_call ");
  if (!count.one_call && !form.between.empty()) {
    absl::StrAppend(&calls_rule, "(", Literal(form.between), " one_call){0,",
                    kMaxCallsOfMessage - 1, "} ");
  }
  absl::StrAppend(&calls_rule, Literal(form.end), "\n");
  if (count.free_text) {
    absl::StrAppend(&grammar, "\ncalls ::= ", calls_rule, FreeTextRules(opening));
  } else {
    // Models write newlines between a thought and what follows it.
    absl::StrAppend(&grammar, "\nroot ::= \"\\n\"{0,2} ", calls_rule);
  }
  return grammar;
}

std::string EitherGrammar(const std::string& first, const std::string& second) {
  return WithLongEscapes(xgrammar::Grammar::Union({xgrammar::Grammar::FromEBNF(first),
                                                   xgrammar::Grammar::FromEBNF(second)})
                             .ToString());
}

std::string_view OpeningOf(const engine::CallText& form) {
  for (const std::string_view opening : engine::CallOpenings()) {
    if (form.begin.starts_with(opening)) return opening;
  }
  return {};
}

}  // namespace withy::grammar

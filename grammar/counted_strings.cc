#include "grammar/counted_strings.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/strings.h"

namespace withy::grammar {
namespace {

constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
constexpr char kCharacter[] = R"([^\0-\u001f\"\\\ud800-\udfff])";
constexpr char kSimpleEscape[] = R"(["\\/bfnrt])";
constexpr std::string_view kSimpleEscapes = "\"\\/bfnrt";
// What may follow a JSON string, in texts without white space before it.
constexpr char kBehindString[] = R"( (=([,}\]:])))";
// What follows a block is not looked at: no string has a newline.
constexpr char kBehindBlock[] = R"( (=("\n")))";
constexpr std::string_view kString = "counted_string_";
constexpr std::string_view kStringEscaped = "counted_escape_";
constexpr std::string_view kBlock = "counted_block_";
constexpr std::string_view kBlockEscaped = "counted_blockescape_";
constexpr std::string_view kPrefix = "counted_prefix_";
constexpr std::string_view kPrefixEscaped = "counted_prefixescape_";
constexpr char kNothing[] = R"([^\0-\U0010ffff])";
constexpr std::string_view kUnicode = "counted_unicode";
constexpr std::string_view kRepeatedEscape = "counted_repeatedescape";
// A character of a string of bounded length as XGrammar writes it: control characters, no escapes.
constexpr std::string_view kRepeated = R"([^\"\\\r\n])";

std::string UnicodeRule(std::string_view name) {
  return absl::StrCat(ToAbsl(name),
                      R"( ::= (([0-9A-CEFa-cef] [0-9A-Fa-f]{3}) | ([Dd] [0-7] [0-9A-Fa-f]{2}) | )"
                      R"(([Dd] [89ABab] [0-9A-Fa-f]{2} "\\u" [Dd] [C-Fc-f] [0-9A-Fa-f]{2})))",
                      "\n");
}

// Writes the rules that are asked for, each once.
class Rules {
 public:
  explicit Rules(bool blocks) : blocks_(blocks) {}

  // The rule of a string behind its first quote; none: it would be one too many.
  std::optional<std::string> String(int32_t least, int32_t most) {
    std::string name = Name(kString, least, most);
    if (bodies_.contains(name)) return name;
    const bool long_one =
        least > kUnrolledCharacters || (most != kAny && most - least > kUnrolledCharacters);
    if ((long_one && !blocks_) || bodies_.size() + Added(least, most) > kMostCountedRules) {
      return std::nullopt;
    }
    AddStrings(least, most);
    return name;
  }

  std::string Text() const {
    if (bodies_.empty()) return "";
    std::string text = "\n" + UnicodeRule(kUnicode);
    for (const auto& [name, body] : bodies_) absl::StrAppend(&text, name, " ::= ", body, "\n");
    return text;
  }

 private:
  static std::string Name(std::string_view kind, int32_t least, int32_t most) {
    return absl::StrCat(ToAbsl(kind), least, "_", most == kAny ? "any" : absl::StrCat(most));
  }

  // Rules of a string, if none is there yet.
  static size_t Added(int32_t least, int32_t most) {
    const int32_t rest = most == kAny ? 1 : most - least;
    size_t count = 2;
    for (const int32_t characters : {least, rest}) {
      count += 2 * static_cast<size_t>(std::min(characters, kUnrolledCharacters));
      count += static_cast<size_t>(characters / kBlockCharacters);
    }
    if (least > kUnrolledCharacters) count += 2 * kUnrolledCharacters;
    return count + 2 * kBlockCharacters;
  }

  void AddStrings(int32_t least, int32_t most) {
    while (true) {
      const std::string name = Name(kString, least, most);
      if (bodies_.contains(name)) return;
      const int32_t soon = kUnrolledCharacters - 1;
      if (least > kUnrolledCharacters || (least == 0 && most != kAny && most > soon + 1)) {
        AddCharacters(kBlock, kBlockEscaped, kBlockCharacters, "", kBehindBlock);
        const bool ends_soon = least == 0;
        ends_soon ? AddStrings(0, soon) : AddPrefix(soon);
        least = std::max(least - kBlockCharacters, 0);
        if (most != kAny) most -= kBlockCharacters;
        bodies_[name] = absl::StrCat(
            "((", ends_soon ? Name(kString, 0, soon) : absl::StrCat(ToAbsl(kPrefix), soon), ") | (",
            ToAbsl(kBlock), kBlockCharacters, " ", Name(kString, least, most), "))");
        continue;
      }
      std::string& body = bodies_[name] = least == 0 ? R"((("\"")))" : "(";
      if (least == 0) body.pop_back();
      if (most == 0) {
        absl::StrAppend(&body, ")", kBehindString);
        return;
      }
      const int32_t next_least = std::max(least - 1, 0), next_most = most == kAny ? kAny : most - 1;
      const std::string next = Name(kString, next_least, next_most);
      const std::string escaped = Name(kStringEscaped, least, most);
      absl::StrAppend(&body, least == 0 ? " | " : "", "(", kCharacter, " ", next, R"() | ("\\" )",
                      escaped, "))", kBehindString);
      bodies_[escaped] = absl::StrCat("((", kSimpleEscape, " ", next, R"() | ("u" )",
                                      ToAbsl(kUnicode), " ", next, "))", kBehindString);
      least = next_least;
      most = next_most;
    }
  }

  // Up to `characters`, which never end.
  void AddPrefix(int32_t characters) {
    bodies_[absl::StrCat(ToAbsl(kPrefix), 0)] = absl::StrCat("((", kNothing, "))");
    AddCharacters(kPrefix, kPrefixEscaped, characters, absl::StrCat(" ", ToAbsl(kPrefix), 0), "");
  }

  // Rules of 1 to `characters` characters and `last` behind them.
  void AddCharacters(std::string_view kind, std::string_view escaped_kind, int32_t characters,
                     std::string_view last, std::string_view behind) {
    for (int32_t left = characters; left > 0; --left) {
      const std::string name = absl::StrCat(ToAbsl(kind), left);
      if (bodies_.contains(name)) return;
      const std::string next =
          left == 1 ? std::string(last) : absl::StrCat(" ", ToAbsl(kind), left - 1);
      const std::string escaped = absl::StrCat(ToAbsl(escaped_kind), left);
      bodies_[name] =
          absl::StrCat("((", kCharacter, next, R"() | ("\\" )", escaped, "))", ToAbsl(behind));
      bodies_[escaped] = absl::StrCat("((", kSimpleEscape, next, R"() | ("u" )", ToAbsl(kUnicode),
                                      next, "))", ToAbsl(behind));
    }
  }

  const bool blocks_;
  std::map<std::string, std::string> bodies_;
};

// The bounds of "{2, 5}" or "{2, -1}".
std::optional<std::pair<int32_t, int32_t>> Bounds(std::string_view text) {
  const size_t comma = text.find(", ");
  int32_t least = 0, most = 0;
  if (comma == std::string_view::npos || !text.starts_with('{') || !text.ends_with('}') ||
      !absl::SimpleAtoi(ToAbsl(text.substr(1, comma - 1)), &least) ||
      !absl::SimpleAtoi(ToAbsl(text.substr(comma + 2, text.size() - comma - 3)), &most) ||
      least < 0 || (most >= 0 && most < least)) {
    return std::nullopt;
  }
  return std::pair(least, most < 0 ? kAny : most);
}

// Names of rules by the repetition of a character that they are: "" is one character.
std::map<std::string, std::string> CharacterRules(std::string_view grammar) {
  std::map<std::string, std::string> rules;
  const std::string one = absl::StrCat(" ::= ((", ToAbsl(kRepeated), "))\n");
  const std::string one_or_none = absl::StrCat(R"( ::= ("" | ()", ToAbsl(kRepeated), "))\n");
  for (const auto& [body, bounds] : {std::pair(one, ""), std::pair(one_or_none, "{0, 1}")}) {
    for (size_t at = grammar.find(body); at != std::string_view::npos;
         at = grammar.find(body, at + 1)) {
      const size_t line = grammar.rfind('\n', at);
      const size_t begin = line == std::string_view::npos ? 0 : line + 1;
      rules[std::string(grammar.substr(begin, at - begin))] = bounds;
    }
  }
  return rules;
}

// Replaces each `repeated` and the quote behind it, if it has a quote before it, too.
void Replace(std::string_view repeated, int32_t least, int32_t most, Rules& rules,
             std::string* grammar) {
  const std::string text = absl::StrCat(R"("\"" )", ToAbsl(repeated), R"( "\"")");
  size_t at = grammar->find(text);
  if (at == std::string::npos) return;
  const std::optional<std::string> rule = rules.String(least, most);
  if (!rule) return;
  absl::StrReplaceAll({{text, absl::StrCat(R"("\"" )", *rule)}}, grammar);
}

}  // namespace

std::string WithCountedStrings(int32_t longest_token, std::string grammar) {
  Rules rules(longest_token <= kUnrolledCharacters - kBlockCharacters);
  Replace(kRepeated, 1, 1, rules, &grammar);
  for (const auto& [name, bounds] : CharacterRules(grammar)) {
    if (const auto known = Bounds(bounds)) {
      Replace(name, known->first, known->second, rules, &grammar);
      continue;
    }
    const std::string use = absl::StrCat(R"("\"" )", name, "{");
    for (size_t at = grammar.find(use); at != std::string::npos; at = grammar.find(use, at + 1)) {
      const size_t begin = at + use.size() - 1;
      const std::string repeated = grammar.substr(begin, grammar.find('}', begin) + 1 - begin);
      if (const auto written = Bounds(repeated)) {
        Replace(name + repeated, written->first, written->second, rules, &grammar);
      }
    }
  }
  const std::string json =
      absl::StrCat("(", kCharacter, R"( | ("\\" )", ToAbsl(kRepeatedEscape), "))");
  if (absl::StrReplaceAll({{ToAbsl(kRepeated), json}}, &grammar) > 0) {
    absl::StrAppend(&grammar, "\n", EscapeRules(kRepeatedEscape));
  }
  return grammar + rules.Text();
}

std::string EscapeRules(std::string_view name) {
  const std::string unicode = std::string(name) + "_unicode";
  return absl::StrCat(ToAbsl(name), " ::= ((", kSimpleEscape, R"() | ("u" )", unicode, "))\n",
                      UnicodeRule(unicode));
}

std::string StringRules(std::string_view name) {
  const std::string escaped = std::string(name) + "_escaped";
  const std::string unicode = std::string(name) + "_unicode";
  return absl::StrCat(ToAbsl(name), R"( ::= (("\"") | ()", kCharacter, " ", ToAbsl(name),
                      R"() | ("\\" )", escaped, "))", kBehindString, "\n", escaped, " ::= ((",
                      kSimpleEscape, " ", ToAbsl(name), R"() | ("u" )", unicode, " ", ToAbsl(name),
                      "))", kBehindString, "\n", UnicodeRule(unicode));
}

int32_t StringCharacters(std::string_view token) {
  int32_t characters = 0;
  for (size_t at = 0; at < token.size(); ++characters) {
    const auto first = static_cast<uint8_t>(token[at]);
    if (first < 0x20 || first == '"' || first == '\\') return 0;
    const size_t bytes = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || at + bytes > token.size()) return 0;
    for (size_t i = 1; i < bytes; ++i) {
      const auto next = static_cast<uint8_t>(token[at + i]);
      uint8_t low = 0x80, high = 0xbf;  // narrower behind some first bytes: Unicode, table 3-7
      if (i == 1 && first == 0xe0) low = 0xa0;
      if (i == 1 && first == 0xed) high = 0x9f;
      if (i == 1 && first == 0xf0) low = 0x90;
      if (i == 1 && first == 0xf4) high = 0x8f;
      if (next < low || next > high) return 0;
    }
    at += bytes;
  }
  return characters;
}

std::vector<int32_t> StringTokens::Accepted(
    const std::string& rule, const std::vector<std::pair<int32_t, std::string>>& vocabulary) const {
  int32_t most = kAny;
  const bool escaped =
      rule.starts_with(kStringEscaped) || rule.starts_with(kBlockEscaped) ||
      rule.starts_with(kPrefixEscaped) ||
      (rule.starts_with("basic_string_sub") && absl::StrContains(rule, "_escaped"));
  if (rule.starts_with("counted_")) {
    const std::string_view last = std::string_view(rule).substr(rule.rfind('_') + 1);
    if (last != "any" && !absl::SimpleAtoi(ToAbsl(last), &most)) return {};
  } else if (!rule.starts_with("basic_string_sub") || absl::StrContains(rule, "_unicode")) {
    return {};
  }
  if (counted_ != &vocabulary) {
    counted_ = &vocabulary;
    counts_.assign(vocabulary.size(), {});
    for (size_t i = 0; i < vocabulary.size(); ++i) {
      const std::string_view token = vocabulary[i].second;
      counts_[i].plain = StringCharacters(token);
      if (token.empty() || kSimpleEscapes.find(token.front()) == std::string_view::npos) continue;
      const int32_t rest = StringCharacters(token.substr(1));
      if (rest > 0 || token.size() == 1) counts_[i].escaped = 1 + rest;
    }
  }
  std::vector<int32_t> accepted;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const int32_t count = escaped ? counts_[i].escaped : counts_[i].plain;
    if (count > 0 && count <= most) accepted.push_back(static_cast<int32_t>(i));
  }
  return accepted;
}

}  // namespace withy::grammar

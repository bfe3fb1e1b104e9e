#include "grammar/format_check.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"
#include "grammar/callable_tools.h"
#include "grammar/schema_check.h"

namespace withy::grammar {
namespace {

constexpr size_t kMostRepeated = 200;  // characters of an automaton; each takes some milliseconds

template <typename... Args>
absl::Status Wrong(std::string_view field, const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), what...));
}

absl::Status CheckSize(std::string_view field, std::string_view text, size_t most_bytes) {
  if (text.empty()) return Wrong(field, " is empty: give one, or leave output_format out");
  if (text.size() > most_bytes) {
    return Wrong(field, " is ", text.size(), " bytes long: at most ", most_bytes, "; shorten it");
  }
  return absl::OkStatus();
}

// The text without what stands in quotes and in character classes, and without comments: what is
// left has the grammar's own parentheses, braces and names.
std::string Skeleton(std::string_view text, bool quotes) {
  std::string skeleton;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\') {
      ++at;
      skeleton += '.';
    } else if (c == '[' || (quotes && c == '"')) {
      const char end = c == '[' ? ']' : '"';
      for (++at; at < text.size() && text[at] != end; ++at) at += text[at] == '\\' ? 1 : 0;
      skeleton += c;
    } else if (quotes && c == '#') {
      while (at < text.size() && text[at] != '\n') ++at;
    } else {
      skeleton += c;
    }
  }
  return skeleton;
}

absl::Status CheckNesting(std::string_view field, std::string_view skeleton) {
  int depth = 0;
  for (const char c : skeleton) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (depth > kMaxGroupDepth) {
      return Wrong(field, " nests groups deeper than ", kMaxGroupDepth, ": make it flatter");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRepetitions(std::string_view field, std::string_view skeleton) {
  for (size_t at = skeleton.find('{'); at != std::string_view::npos;
       at = skeleton.find('{', at + 1)) {
    uint64_t number = 0;
    for (size_t i = at + 1; i < skeleton.size() && skeleton[i] != '}'; ++i) {
      const auto c = static_cast<unsigned char>(skeleton[i]);
      number = std::isdigit(c) != 0 ? std::min<uint64_t>(10 * number + (c - '0'), 1 << 20) : 0;
      if (number > kMaxRepetitions) {
        return Wrong(field, " repeats something more than ", kMaxRepetitions,
                     " times: repeat it less often, or without an upper limit");
      }
    }
  }
  return absl::OkStatus();
}

// Characters of a regular expression whose short repetitions are written out, as its automaton has
// them. Longer repetitions are counted while matching.
size_t WrittenOut(std::string_view skeleton) {
  constexpr size_t kMostCopies = 128;
  constexpr size_t kEnough = 1 << 20;
  std::vector<size_t> groups = {0};  // sizes of the open groups
  size_t last = 0;                   // of what a repetition would be of
  for (size_t at = 0; at < skeleton.size(); ++at) {
    const char c = skeleton[at];
    if (c == '(') {
      groups.push_back(0);
    } else if (c == ')' && groups.size() > 1) {
      last = groups.back();
      groups.pop_back();
      groups.back() += last;
    } else if (c == '{') {
      size_t copies = 0;
      for (++at; at < skeleton.size() && skeleton[at] != '}'; ++at) {
        const bool digit = std::isdigit(static_cast<unsigned char>(skeleton[at])) != 0;
        copies =
            digit ? std::min(10 * copies + static_cast<size_t>(skeleton[at] - '0'), kEnough) : 0;
      }
      if (copies > 1 && copies <= kMostCopies) groups.back() += last * (copies - 1);
    } else {
      last = 1;
      ++groups.back();
    }
    groups.back() = std::min(groups.back(), kEnough);
  }
  size_t sum = 0;
  for (const size_t group : groups) sum += group;
  return sum;
}

absl::Status CheckEbnf(std::string_view text) {
  constexpr std::string_view kField = "output_format.grammar";
  WITHY_RETURN_IF_ERROR(CheckSize(kField, text, kMaxGrammarBytes));
  const std::string skeleton = Skeleton(text, /*quotes=*/true);
  WITHY_RETURN_IF_ERROR(CheckNesting(kField, skeleton));
  WITHY_RETURN_IF_ERROR(CheckRepetitions(kField, skeleton));
  for (const std::string_view name : {"TagDispatch", "Token", "Regex", "Substring"}) {
    if (skeleton.find(std::string(name) + "(") != std::string::npos) {
      return Wrong(kField, " uses ", ToAbsl(name),
                   "(…), which is not supported: write rules of "
                   "strings and character classes");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRegex(std::string_view field, std::string_view regex) {
  WITHY_RETURN_IF_ERROR(CheckSize(field, regex, kMaxRegexBytes));
  const std::string skeleton = Skeleton(regex, /*quotes=*/false);
  for (size_t at = skeleton.find("(?"); at != std::string::npos; at = skeleton.find("(?", at + 1)) {
    if (skeleton.compare(at, 3, "(?:") == 0) continue;
    return Wrong(field, " uses ", skeleton.substr(at, 3),
                 "…, which is not supported: only (…) and (?:…) are");
  }
  WITHY_RETURN_IF_ERROR(CheckNesting(field, skeleton));
  WITHY_RETURN_IF_ERROR(CheckRepetitions(field, skeleton));
  if (WrittenOut(skeleton) <= skeleton.size() + kMostRepeated) return absl::OkStatus();
  return Wrong(field, " repeats ", WrittenOut(skeleton) - skeleton.size(),
               " characters when its repetitions are written out: at most ", kMostRepeated,
               "; repeat less, or without an upper limit");
}

absl::Status CheckFormat(const engine::OutputFormat& format) {
  using Kind = engine::OutputFormat::Kind;
  if (format.kind == Kind::kFree) return absl::OkStatus();
  if (!WITHY_XGRAMMAR) {
    if (format.free_text) return absl::OkStatus();
    return absl::UnimplementedError(
        "output_format is set, but this program was built without XGrammar: run ./withy setup with "
        "a connection to PyPI and build again, or leave output_format out and check the answer");
  }
  switch (format.kind) {
    case Kind::kJsonSchema:
      WITHY_RETURN_IF_ERROR(CheckSize("output_format.json_schema", format.text, kMaxSchemaBytes));
      return PrepareSchema("output_format.json_schema", format.text).status();
    case Kind::kRegex:
      return CheckRegex("output_format.regex", format.text);
    case Kind::kEbnf:
      return CheckEbnf(format.text);
    case Kind::kToolCalls:
      WITHY_RETURN_IF_ERROR(CallableTools(format).status());
      if (format.schema.empty()) return absl::OkStatus();
      if (format.free_text) {
        return absl::InvalidArgumentError(
            "output_format.tool_calls has both free_text and json_schema: give one of them");
      }
      WITHY_RETURN_IF_ERROR(CheckSize(kCallsSchemaField, format.schema, kMaxSchemaBytes));
      return PrepareSchema(kCallsSchemaField, format.schema).status();
    case Kind::kFree:
    case Kind::kJsonObject:
      break;
  }
  return absl::OkStatus();
}

}  // namespace withy::grammar

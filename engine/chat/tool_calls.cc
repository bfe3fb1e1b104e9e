#include "engine/chat/tool_calls.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/fnv1a.h"
#include "base/tool_name.h"

namespace withy::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;     // of JSON in an answer
constexpr int kMaxFailures = 64;  // markers without a call, after which all is text
constexpr std::string_view kWhite = " \t\n\r";
constexpr std::string_view kThoughtsEnd = "</think>";

constexpr std::string_view kTag = "<tool_call>";
constexpr std::string_view kTagEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kToolCalls = "[TOOL_CALLS]";
constexpr std::string_view kArgs = "[ARGS]";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kBar = "<|tool_call|>";
constexpr std::string_view kBarEnd = "<|/tool_call|>";
constexpr std::string_view kAction = "<|START_ACTION|>";
constexpr std::string_view kActionEnd = "<|END_ACTION|>";
// With U+FF5C and U+2581.
constexpr std::string_view kDeepCalls = "<\uFF5Ctool\u2581calls\u2581begin\uFF5C>";
constexpr std::string_view kDeepCallsEnd = "<\uFF5Ctool\u2581calls\u2581end\uFF5C>";
constexpr std::string_view kDeepCall = "<\uFF5Ctool\u2581call\u2581begin\uFF5C>";
constexpr std::string_view kDeepCallEnd = "<\uFF5Ctool\u2581call\u2581end\uFF5C>";
constexpr std::string_view kDeepSeparator = "<\uFF5Ctool\u2581sep\uFF5C>";

// Those that a call may begin with.
constexpr std::array kOpening = {kTag, kFunction, kToolCalls, kPython,
                                 kBar, kAction,   kDeepCalls, kDeepCall};
constexpr std::array kMarkers = {kTag,          kTagEnd,   kFunctionEnd, kToolCalls,
                                 kArgs,         kCallId,   kPython,      kBar,
                                 kBarEnd,       kAction,   kActionEnd,   kDeepCalls,
                                 kDeepCallsEnd, kDeepCall, kDeepCallEnd, kDeepSeparator};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

size_t SkipSpaces(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kWhite, at), text.size());
}

// `text` up to `end`, without white space at its end.
size_t TrimmedEnd(std::string_view text, size_t end) {
  const size_t last = text.substr(0, end).find_last_not_of(kWhite);
  return last == std::string_view::npos ? 0 : last + 1;
}

size_t StringEnd(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

// End of the JSON value that begins at `at`, whose syntax is looked at only as far as that needs.
size_t ValueEnd(std::string_view text, size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = StringEnd(text, at);
      if (at == std::string_view::npos) return at;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) break;
      ++at;
    } else if (c == '}' || c == ']') {
      if (--depth < 0) break;
      ++at;
    } else if (depth > 0) {
      ++at;
      continue;
    } else {
      const size_t end = std::min(text.find_first_of(",]}: \t\n\r\"", at), text.size());
      return end > at ? end : std::string_view::npos;
    }
    if (depth == 0) return at;
  }
  return std::string_view::npos;
}

// `object` is valid JSON. Calls member(name, value) for each.
template <typename Function>
void ForEachMember(std::string_view object, Function member) {
  size_t at = SkipSpaces(object, 1);
  while (at < object.size() && object[at] == '"') {
    const size_t key_end = StringEnd(object, at);
    const std::string key = Json::parse(object.substr(at, key_end - at)).get<std::string>();
    const size_t value = SkipSpaces(object, SkipSpaces(object, key_end) + 1);
    const size_t end = ValueEnd(object, value);
    member(key, object.substr(value, end - value));
    at = SkipSpaces(object, end);
    if (at < object.size() && object[at] == ',') at = SkipSpaces(object, at + 1);
  }
}

std::optional<std::string> TextOf(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  return Json::parse(json).get<std::string>();
}

// `json` is valid, or text of the model that need not be.
std::optional<std::string> ArgumentsOf(std::string_view json) {
  if (json.empty() || json == "null") return "{}";
  if (const std::optional<std::string> text = TextOf(json)) {
    const std::string_view inner(*text);
    const size_t begin = SkipSpaces(inner, 0);
    if (begin == inner.size()) return "{}";
    if (inner[begin] != '{' || ValueEnd(inner, begin) == std::string_view::npos ||
        !Json::accept(inner)) {
      return std::nullopt;
    }
    return text;
  }
  if (!json.starts_with('{')) return std::nullopt;
  return std::string(json);
}

// `object` is valid JSON. "function" may hold the name, or name and arguments.
std::optional<ToolCall> CallOf(std::string_view object, bool inner = false) {
  std::optional<std::string> name;
  std::string_view arguments, function;
  ForEachMember(object, [&](const std::string& key, std::string_view value) {
    if (key == "name" || key == "tool_name") {
      name = TextOf(value);
    } else if (key == "arguments" || key == "parameters") {
      arguments = value;
    } else if (key == "function") {
      function = value;
    }
  });
  if (!name && function.starts_with('"')) name = TextOf(function);
  if (!name && function.starts_with('{') && !inner) return CallOf(function, true);
  if (!name || !IsToolName(*name)) return std::nullopt;
  std::optional<std::string> told = ArgumentsOf(arguments);
  if (!told) return std::nullopt;
  return ToolCall{.id = {}, .name = *std::move(name), .arguments_json = *std::move(told)};
}

// Walks over an answer. A Read function leaves it behind what it has read; after false, nobody
// looks at it any more.
class Reader {
 public:
  Reader(const ToolCallParser& parser, std::string_view text, size_t at)
      : parser_(parser), text_(text), at_(at) {}

  size_t at() const { return at_; }
  std::vector<ToolCall>& calls() { return calls_; }

  // A call, or a group of calls, with its markers.
  bool ReadMarked() {
    if (Take(kTag)) return ReadTag();
    if (Take(kFunction)) return ReadFunction();
    if (Take(kToolCalls)) return ReadMistral();
    if (Take(kPython)) return ReadSeveral();
    if (Take(kBar)) return ReadJson() && (TakeAfterSpaces(kBarEnd), true);
    if (Take(kAction)) return ReadJson() && TakeOrEnd(kActionEnd);
    if (Take(kDeepCalls)) return ReadDeepSeek();
    return Take(kDeepCall) && ReadDeepSeekCall();
  }

  // JSON objects and nothing else, all calls of known tools.
  bool ReadBare() {
    if (!ReadSeveral() || !AtEnd()) return false;
    return std::all_of(calls_.begin(), calls_.end(),
                       [this](const ToolCall& call) { return parser_.Knows(call.name); });
  }

 private:
  bool Take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  bool TakeAfterSpaces(std::string_view what) {
    const size_t before = at_;
    at_ = SkipSpaces(text_, at_);
    if (Take(what)) return true;
    at_ = before;
    return false;
  }
  bool AtEnd() const { return SkipSpaces(text_, at_) == text_.size(); }
  // An answer may end before the last marker.
  bool TakeOrEnd(std::string_view what) {
    if (TakeAfterSpaces(what)) return true;
    if (!AtEnd()) return false;
    at_ = text_.size();
    return true;
  }
  char Peek() {
    at_ = SkipSpaces(text_, at_);
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  // Text up to `end`, which is taken, too.
  std::optional<std::string_view> TakeUntil(std::string_view end) {
    const size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) return std::nullopt;
    const std::string_view text = text_.substr(at_, found - at_);
    at_ = found + end.size();
    return text;
  }
  std::optional<std::string_view> TakeValue() {
    at_ = SkipSpaces(text_, at_);
    const size_t end = ValueEnd(text_, at_);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view value = text_.substr(at_, end - at_);
    if (!Json::accept(value)) return std::nullopt;
    at_ = end;
    return value;
  }
  bool Add(std::optional<ToolCall> call) {
    if (!call || calls_.size() >= kMaxToolCalls) return false;
    calls_.push_back(*std::move(call));
    return true;
  }
  bool AddNamed(std::string_view name, std::string_view arguments) {
    const size_t begin = SkipSpaces(name, 0);
    const size_t end = TrimmedEnd(name, name.size());
    if (end <= begin) return false;
    name = name.substr(begin, end - begin);
    if (!IsToolName(name)) return false;
    std::optional<std::string> told = ArgumentsOf(arguments);
    if (!told) return false;
    return Add(ToolCall{.id = {}, .name = std::string(name), .arguments_json = *std::move(told)});
  }

  // A call as JSON, or a list of calls.
  bool ReadJson() {
    const char first = Peek();
    if (first != '{' && first != '[') return false;
    const std::optional<std::string_view> value = TakeValue();
    if (!value) return false;
    if (first == '{') return Add(CallOf(*value));
    size_t at = SkipSpaces(*value, 1);
    while (at < value->size() && (*value)[at] == '{') {
      const size_t end = ValueEnd(*value, at);
      if (!Add(CallOf(value->substr(at, end - at)))) return false;
      at = SkipSpaces(*value, end);
      if (at < value->size() && (*value)[at] == ',') at = SkipSpaces(*value, at + 1);
    }
    return at + 1 == value->size() && !calls_.empty();
  }
  // With ';' or nothing between.
  bool ReadSeveral() {
    do {
      if (!ReadJson()) return false;
      while (TakeAfterSpaces(";")) {
      }
    } while (Peek() == '{');
    return true;
  }
  bool ReadTag() {
    if (TakeAfterSpaces(kFunction)) return ReadFunction() && TakeOrEnd(kTagEnd);
    if (!ReadJson()) return false;
    while (Peek() == '{') {
      if (!ReadJson()) return false;
    }
    return TakeOrEnd(kTagEnd);
  }
  // Behind "<function=".
  bool ReadFunction() {
    const auto name = TakeUntil(">");
    if (!name) return false;
    if (Peek() == '{') {
      const auto arguments = TakeValue();
      return arguments && AddNamed(*name, *arguments) && TakeOrEnd(kFunctionEnd);
    }
    Json arguments = Json::object();
    while (TakeAfterSpaces(kParameter)) {
      const auto key = TakeUntil(">");
      auto value = key ? TakeUntil(kParameterEnd) : std::nullopt;
      if (!value) return false;
      // The newlines around it are the form's.
      if (value->starts_with('\n')) value->remove_prefix(1);
      if (value->ends_with('\n')) value->remove_suffix(1);
      const bool json = !parser_.IsText(*name, *key) && ValueEnd(*value, 0) == value->size() &&
                        Json::accept(*value);
      arguments[std::string(*key)] = json ? Json::parse(*value) : Json(std::string(*value));
    }
    return AddNamed(*name, Dump(arguments)) && TakeAfterSpaces(kFunctionEnd);
  }
  bool ReadMistral() {
    const char first = Peek();
    if (first == '[' || first == '{') return ReadJson();
    const size_t end = text_.find_first_of("[{", at_);
    if (end == std::string_view::npos) return false;
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end;
    if (Take(kCallId)) at_ = std::min(text_.find_first_of("[{", at_), text_.size());
    Take(kArgs);
    if (Peek() != '{') return false;
    const auto arguments = TakeValue();
    return arguments && AddNamed(name, *arguments);
  }
  bool ReadDeepSeek() {
    while (TakeAfterSpaces(kDeepCall)) {
      if (!ReadDeepSeekCall()) return false;
    }
    return !calls_.empty() && TakeOrEnd(kDeepCallsEnd);
  }
  // "TYPE separator NAME\n```json\nJSON\n```", or "NAME separator JSON".
  bool ReadDeepSeekCall() {
    auto name = TakeUntil(kDeepSeparator);
    if (!name) return false;
    if (Peek() != '{') {
      name = TakeUntil("\n");
      if (!name) return false;
      TakeAfterSpaces("```json");
    }
    const auto arguments = TakeValue();
    if (!arguments || !AddNamed(*name, *arguments)) return false;
    TakeAfterSpaces("```");
    return TakeOrEnd(kDeepCallEnd);
  }

  const ToolCallParser& parser_;
  const std::string_view text_;
  size_t at_;
  std::vector<ToolCall> calls_;
};

// Where the answer itself begins.
size_t BehindThoughts(std::string_view answer) {
  const size_t end = answer.find(kThoughtsEnd);
  return end == std::string_view::npos ? 0 : end + kThoughtsEnd.size();
}

size_t FindOpening(std::string_view text, size_t from) {
  size_t first = std::string_view::npos;
  for (const std::string_view marker : kOpening) {
    first = std::min(
        first,
        text.substr(0, first == std::string_view::npos ? text.size() : first + marker.size() - 1)
            .find(marker, from));
  }
  return first;
}

// Collects what is outside of calls.
class Outside {
 public:
  void Append(std::string_view text, bool before_call) {
    if (behind_call_) {
      text.remove_prefix(SkipSpaces(text, 0));
      if (!text.empty() && !text_.empty()) text_ += '\n';
    }
    if (before_call) text = text.substr(0, TrimmedEnd(text, text.size()));
    text_ += text;
    behind_call_ = before_call;
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
  bool behind_call_ = false;
};

Json Member(const Json& object, const char* name) {
  return object.is_object() ? object.value(name, Json::object()) : Json::object();
}

// Whether text that begins with '{' or '[' may be the beginning of a call.
bool MayBeBare(std::string_view text) {
  size_t at = 0;
  if (text.starts_with('[')) at = SkipSpaces(text, 1);
  if (at == text.size()) return true;
  if (text[at] != '{') return false;
  const std::string_view key = text.substr(SkipSpaces(text, at + 1));
  for (const std::string_view known : {R"("name")", R"("type")", R"("function")", R"("parameters")",
                                       R"("arguments")", R"("id")"}) {
    const size_t common = std::min(known.size(), key.size());
    if (known.substr(0, common) == key.substr(0, common)) return true;
  }
  return false;
}

}  // namespace

std::string ToolCallsJson(std::span<const ToolCall> calls) {
  if (calls.empty()) return "";
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    list.push_back({{"id", call.id},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments_json}}}});
  }
  return Dump(list);
}

void GiveIds(uint64_t call_id, std::vector<ToolCall>* calls) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  for (size_t i = 0; i < calls->size(); ++i) {
    Fnv1a hash;
    hash.Add(std::to_string(call_id) + ":" + std::to_string(i));
    uint64_t rest = hash.value();
    std::string id;
    for (int digit = 0; digit < 9; ++digit, rest /= kDigits.size()) {
      id += kDigits[rest % kDigits.size()];
    }
    (*calls)[i].id = std::move(id);
  }
}

bool IsEmptyJson(std::string_view json) {
  std::string rest;
  for (const char c : json) {
    if (kWhite.find(c) != std::string_view::npos) continue;
    rest += c;
    if (rest.size() > 2) return false;
  }
  return rest.empty() || rest == "[]" || rest == "{}";
}

std::span<const std::string_view> CallMarkers() { return kMarkers; }

ToolCallParser::ToolCallParser(std::string_view tools_json) {
  const Json tools = Json::parse(tools_json, nullptr, /*allow_exceptions=*/false);
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      continue;
    }
    auto& parameters = tools_[function["name"].get<std::string>()];
    const Json schemas = Member(Member(function, "parameters"), "properties");
    for (const auto& [name, schema] : schemas.items()) {
      parameters[name] = Member(schema, "type") == "string";
    }
  }
}

ToolCallParser::ToolCallParser(std::span<const std::string> names) {
  for (const std::string& name : names) tools_[name];
}

bool ToolCallParser::IsText(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return false;
  const auto described = found->second.find(parameter);
  return described != found->second.end() && described->second;
}

AnswerParts ToolCallParser::Parse(std::string_view answer) const {
  const size_t begin = BehindThoughts(answer);
  AnswerParts parts;
  Outside outside;
  const size_t first = SkipSpaces(answer, begin);
  if (first < answer.size() && (answer[first] == '{' || answer[first] == '[')) {
    Reader reader(*this, answer, first);
    if (reader.ReadBare()) {
      outside.Append(answer.substr(0, begin), /*before_call=*/true);
      return {.text = outside.Take(), .calls = std::move(reader.calls())};
    }
  }
  size_t told = 0;  // of the answer
  int failures = 0;
  size_t at = begin;
  while (failures < kMaxFailures) {
    at = FindOpening(answer, at);
    if (at == std::string_view::npos) break;
    Reader reader(*this, answer, at);
    if (!reader.ReadMarked() || parts.calls.size() + reader.calls().size() > kMaxToolCalls) {
      ++failures;
      ++at;
      continue;
    }
    outside.Append(answer.substr(told, at - told), /*before_call=*/true);
    std::move(reader.calls().begin(), reader.calls().end(), std::back_inserter(parts.calls));
    told = at = reader.at();
  }
  outside.Append(answer.substr(told), /*before_call=*/false);
  parts.text = outside.Take();
  return parts;
}

size_t ShownBeforeCalls(std::string_view answer, size_t shown) {
  const size_t begin = BehindThoughts(answer);
  const size_t first = SkipSpaces(answer, begin);
  size_t end = answer.size();
  if (shown <= first && first < answer.size() && (answer[first] == '{' || answer[first] == '[') &&
      MayBeBare(answer.substr(first))) {
    end = begin;
  } else if (const size_t found = FindOpening(answer, std::max(shown, begin));
             found != std::string_view::npos) {
    end = found;
  } else {
    for (const std::string_view marker : kOpening) {
      for (size_t length = std::min(marker.size() - 1, answer.size()); length > 0; --length) {
        if (!answer.ends_with(marker.substr(0, length))) continue;
        end = std::min(end, answer.size() - length);
        break;
      }
    }
  }
  return std::max(shown, TrimmedEnd(answer, end));
}

}  // namespace withy::engine
